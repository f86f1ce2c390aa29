"""Text: prompts, the instruction in front of them, and the decoder that reads both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports

if TYPE_CHECKING:
    from sana_like.text.encoder import PromptEncoder as PromptEncoder
    from sana_like.text.encoding import TextEncoding as TextEncoding
    from sana_like.text.encoding import TextEncodingError as TextEncodingError
    from sana_like.text.report import PromptTruncatedWarning as PromptTruncatedWarning
    from sana_like.text.report import TokenReport as TokenReport
    from sana_like.text.settings import TextSettings as TextSettings
    from sana_like.text.settings import embedded_settings as embedded_settings
    from sana_like.text.settings import published_settings as published_settings
    from sana_like.text.smollm2 import load_smollm2 as load_smollm2
    from sana_like.text.smollm2 import load_smollm2_tokenizer as load_smollm2_tokenizer

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "PromptEncoder": "encoder",
        "PromptTruncatedWarning": "report",
        "TextEncoding": "encoding",
        "TextEncodingError": "encoding",
        "TextSettings": "settings",
        "TokenReport": "report",
        "embedded_settings": "settings",
        "load_smollm2": "smollm2",
        "load_smollm2_tokenizer": "smollm2",
        "published_settings": "settings",
    },
)

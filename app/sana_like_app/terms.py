"""The terms of the code, of the weights and of the pictures: three separate statements."""

from __future__ import annotations

TERMS = {
    "Code": (
        "The code is licensed under the Apache License, Version 2.0. The file LICENSE has the "
        "full text and NOTICE the credits."
    ),
    "Weights": (
        "The embedded models (emoji-ae, emoji and their kin in sana_like/zoo) were trained from "
        "scratch by this project and are licensed under the Apache License, Version 2.0. They "
        "learned from Fluent Emoji (Microsoft, MIT), Noto Emoji (Google, Apache-2.0) and, where "
        "the model card says so, Twemoji (Twitter, Inc and other contributors, CC-BY 4.0). The "
        "text encoder SmolLM2-135M-Instruct (Hugging Face, Apache-2.0) is fetched on request. "
        "Weights from elsewhere, such as the published SANA models and the Gemma text encoder "
        "they need, keep the terms of their publishers: read those before you use them."
    ),
    "Pictures": (
        "This project claims no rights in the pictures you make. With the embedded models you may "
        "use them for any purpose; a picture can come close to the emoji art that the model "
        "learned from, and that art's own terms, credit for Twemoji among them, then apply. With "
        "other weights their publishers' terms decide."
    ),
}

"""The published SANA weights on a GPU: python published_weights.py FOLDER_OR_HUB_ID PROMPT.

They come under their publisher's terms, and the text encoder under those of Gemma.
"""

import sys

import torch

from sana_like_pipelines import SanaPipeline

name, prompt = sys.argv[1:]
pipe = SanaPipeline.from_pretrained(name, torch_dtype=torch.bfloat16).to("cuda")
pipe(prompt, height=1024, width=1024, num_inference_steps=20, generator=1).images[0].save("out.png")
print("out.png")

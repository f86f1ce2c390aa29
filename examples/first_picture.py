"""One picture with the embedded model. Run `sana-like zoo fetch` once before."""

from sana_like_pipelines import SanaPipeline

pipe = SanaPipeline.from_pretrained("emoji")
pipe("a red apple, 3d", generator=1).images[0].save("apple.png")
print("apple.png")

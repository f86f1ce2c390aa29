"""Two prompts, three pictures of each, every one with its own seed, on one sheet."""

from sana_like_pipelines import SanaPipeline
from sana_like_pipelines.media import contact_sheet

prompts = ["a fox, 3d", "a dog, 3d"]
pipe = SanaPipeline.from_pretrained("emoji")
result = pipe(prompts, num_images_per_prompt=3, generator=[1, 2, 3, 1, 2, 3])
captions = [prompt for prompt in prompts for _ in range(3)]
contact_sheet(result.images, captions).save("foxes.png")
print("foxes.png")

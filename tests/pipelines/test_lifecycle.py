"""Loading, saving, moving and offloading."""

from __future__ import annotations

import json
import shutil

import accelerate
import diffusers
import pytest
import torch

from sana_like.text import TextSettings
from sana_like.weights import WeightsError
from sana_like_pipelines import SanaImg2ImgPipeline, SanaPipeline, SanaSprintPipeline


def latents_of(pipe, *prompt, **arguments):
    return pipe(*prompt, output_type="latent", **arguments).images


def load(folder, **arguments):
    pipe = SanaPipeline.from_pretrained(folder, **arguments)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(saved("sana").folder, tmp_path / "copy")


def edit_index(folder, **changes):
    path = folder / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestLoading:
    def test_classes_are_ours(self, sana):
        import sana_like

        assert type(sana.transformer) is sana_like.SanaTransformer2DModel
        assert type(sana.vae) is sana_like.AutoencoderDC
        assert type(sana.scheduler) is sana_like.FlowDPMSolverScheduler
        assert set(sana.components) == {
            "tokenizer", "text_encoder", "vae", "transformer", "scheduler",
        }  # fmt: skip
        assert not any(module.training for module in (sana.transformer, sana.vae))

    @pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
    def test_dtype_of_all(self, folder, name):
        pipe = load(folder, **{name: torch.bfloat16})
        modules = (pipe.text_encoder, pipe.transformer, pipe.vae)
        assert {module.dtype for module in modules} == {torch.bfloat16}

    def test_dtype_by_component(self, folder):
        pipe = load(folder, dtype={"transformer": torch.bfloat16, "default": "float16"})
        assert pipe.transformer.dtype == torch.bfloat16
        assert pipe.vae.dtype == pipe.text_encoder.dtype == torch.float16
        with pytest.raises(ValueError, match="dtype names transfomer; components are"):
            load(folder, dtype={"transfomer": torch.bfloat16})

    def test_loading_route_does_not_change_the_numbers(self, folder, quick):
        """With a table of positions, which diffusers rounds on one route and not on the other."""
        path = folder / "transformer" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"interpolation_scale": 1.0}))
        arguments = quick | {"generator": 1, "guidance_scale": 1.0}
        cast = load(folder)
        loaded = load(folder, dtype={"transformer": torch.bfloat16, "default": torch.float32})
        cast.transformer.to(torch.bfloat16)
        assert torch.equal(latents_of(cast, "a", **arguments), latents_of(loaded, "a", **arguments))

    def test_components_from_elsewhere(self, saved, folder):
        shutil.rmtree(folder / "transformer")
        edit_index(folder, transformer=[None, None])
        with pytest.raises(WeightsError, match="transformer"):
            load(folder)
        place = saved("sana").folder / "transformer"
        by_path = load(folder, transformer=place, vae=str(saved("sana").folder / "vae"))
        by_object = load(folder, transformer=by_path.transformer)
        assert by_object.transformer is by_path.transformer

    def test_every_text_part_by_path(self, saved, folder):
        for name in ("tokenizer", "text_encoder", "scheduler"):
            shutil.rmtree(folder / name)
        source = saved("sana").folder
        pipe = load(
            folder,
            tokenizer=source / "tokenizer",
            text_encoder=source / "text_encoder",
            scheduler=source / "scheduler",
        )
        assert pipe.encode_prompt("a")[0].shape[-1] == 16

    def test_variant(self, folder, sana):
        sana.transformer.to(torch.float16).save_pretrained(folder / "transformer", variant="fp16")
        assert load(folder, variant="fp16").transformer.dtype == torch.float16
        assert load(folder).transformer.dtype == torch.float32
        with pytest.raises(WeightsError, match="bf16"):
            load(folder, variant="bf16")

    def test_two_dtypes_are_refused(self, folder):
        with pytest.raises(ValueError, match="differ"):
            load(folder, dtype=torch.float32, torch_dtype=torch.float16)
        with pytest.raises(ValueError, match="no floating dtype"):
            load(folder, dtype="int8")
        with pytest.raises(ValueError, match="no argument safety_checker"):
            load(folder, safety_checker=None)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"_class_name": "FluxPipeline"}, "FluxPipeline"),
            ({"_class_name": None}, "_class_name"),
            ({"vae": ["diffusers", "AutoencoderKL"]}, "AutoencoderKL"),
            ({"transformer": ["my_module", "Transformer"]}, "my_module"),
            ({"text_encoder": ["transformers", "os"]}, "os"),
            ({"text_settings": {"words": 3}}, "words"),
            ({"latent_rgb": {"patch": 1}}, "latent_rgb"),
        ],
    )
    def test_foreign_indexes_are_refused(self, folder, changes, message):
        edit_index(folder, **changes)
        with pytest.raises(ValueError, match=message):
            load(folder)

    def test_code_in_the_folder_is_not_run(self, folder, tmp_path):
        marker = tmp_path / "ran"
        code = f"open({str(marker)!r}, 'w')\nclass Net: pass\n"
        (folder / "transformer" / "my_net.py").write_text(code)
        edit_index(folder, transformer=["my_net", "Net"])
        with pytest.raises(WeightsError, match="my_net"):
            load(folder)
        assert not marker.exists()

    def test_pickled_text_encoder_is_refused(self, folder, tmp_path):
        weights = folder / "text_encoder" / "model.safetensors"
        weights.rename(weights.with_name("pytorch_model.bin"))
        with pytest.raises((OSError, ValueError), match="safetensors"):
            load(folder)

    @pytest.mark.parametrize("part", ["text_encoder", "vae", "transformer"])
    @pytest.mark.parametrize("fault", ["cut", "page", "pointer", "empty", "tail"])
    def test_broken_weights_are_refused_before_anything_is_loaded(
        self, folder, part, fault, monkeypatch
    ):
        from sana_like_pipelines import lifecycle

        loaded = []
        monkeypatch.setattr(lifecycle, "load_component", lambda name, *_: loaded.append(name))
        (path,) = (folder / part).glob("*.safetensors")
        whole = path.read_bytes()
        path.write_bytes(
            {
                "cut": whole[: len(whole) // 2],
                "page": b"<!DOCTYPE html><html>404</html>",
                "pointer": b"version https://git-lfs.github.com/spec/v1\nsize 123456\n",
                "empty": b"",
                "tail": whole + b"more",
            }[fault]
        )
        with pytest.raises(WeightsError, match=rf"{part}.*\d+ bytes"):
            load(folder)
        assert loaded == []

    def test_broken_scheduler_is_named(self, folder):
        (folder / "scheduler" / "scheduler_config.json").write_text("{")
        with pytest.raises(WeightsError, match="scheduler_config"):
            load(folder)

    def test_names_that_mean_nothing(self, tmp_path):
        with pytest.raises(WeightsError, match="no-such-model"):
            SanaPipeline.from_pretrained("no-such-model")
        with pytest.raises(WeightsError, match="model_index"):
            SanaPipeline.from_pretrained(tmp_path)
        with pytest.raises(WeightsError, match="cache"):
            SanaPipeline.from_pretrained("someone/something", local_files_only=True)

    def test_which_files_of_a_hub_repository(self):
        from fnmatch import fnmatch

        from sana_like_pipelines.loading import hub_patterns

        def wanted(name, variant=None):
            patterns = hub_patterns(variant, ["transformer", "text_encoder"])
            return any(fnmatch(name, pattern) for pattern in patterns)

        stem = "transformer/diffusion_pytorch_model"
        assert wanted("model_index.json") and wanted("tokenizer/tokenizer.model")
        assert wanted(f"{stem}.safetensors") and wanted(f"{stem}-00001-of-00002.safetensors")
        assert not wanted(f"{stem}.fp16.safetensors") and not wanted(f"{stem}.bin")
        assert not wanted(f"{stem}.fp16-00001-of-00002.safetensors")
        assert not wanted("vae/diffusion_pytorch_model.safetensors"), "given by the caller"
        assert wanted(f"{stem}.fp16.safetensors", "fp16")
        assert wanted("text_encoder/model.fp16-00001-of-00002.safetensors", "fp16")


class TestSaving:
    def test_settings_travel(self, sana, tmp_path):
        sana.text_settings = TextSettings(instruction="See:", max_sequence_length=20)
        sana.save_pretrained(tmp_path)
        again = load(tmp_path)
        assert again.text_settings == sana.text_settings
        assert again.active_text_settings().instruction == "See:"
        recipe = again("a", num_inference_steps=1, height=16, width=16).recipe[0]
        assert recipe["text"]["max_sequence_length"] == 20
        assert recipe["model"] == str(tmp_path)

    def test_published_way_of_reading_is_in_the_recipe(self, sana, quick):
        text = sana("A Cat", **quick).recipe[0]["text"]
        assert text["lowercase"] is True and text["selection"] == "published"

    def test_index_comes_last(self, sana, tmp_path, monkeypatch):
        def fail(*args, **kwargs):
            raise OSError("disk full")

        monkeypatch.setattr(sana.vae, "save_pretrained", fail)
        with pytest.raises(OSError, match="disk full"):
            sana.save_pretrained(tmp_path)
        assert not (tmp_path / "model_index.json").exists()

    def test_pickle_is_refused(self, sana, tmp_path):
        with pytest.raises(ValueError, match="safetensors"):
            sana.save_pretrained(tmp_path, safe_serialization=False)

    def test_without_a_text_encoder(self, saved, tmp_path):
        bare = load(saved("sana").folder, tokenizer=None, text_encoder=None)
        bare.save_pretrained(tmp_path)
        assert load(tmp_path).text_encoder is None

    def test_other_tasks_are_saved_as_what_diffusers_knows(self, sana, tmp_path):
        SanaImg2ImgPipeline.from_pipe(sana).save_pretrained(tmp_path)
        index = json.loads((tmp_path / "model_index.json").read_text())
        assert index["_class_name"] == "SanaPipeline"
        assert SanaImg2ImgPipeline.from_pretrained(tmp_path).transformer is not None


def test_from_pipe_shares_everything(sana):
    other = SanaImg2ImgPipeline.from_pipe(sana)
    for name, part in sana.components.items():
        assert getattr(other, name) is part
    assert other.name_or_path == sana.name_or_path
    with pytest.raises(ValueError, match="controlnet"):
        from sana_like_pipelines import SanaControlNetPipeline

        SanaControlNetPipeline.from_pipe(sana)


def test_mismatched_parts_are_refused(sana):
    from sana_like import SanaTransformer2DModel

    other = SanaTransformer2DModel(**dict(sana.transformer.config) | {"in_channels": 8})
    with pytest.raises(ValueError, match="4 latent channels"):
        SanaPipeline.from_pipe(sana, transformer=other)
    other = SanaTransformer2DModel(**dict(sana.transformer.config) | {"caption_channels": 8})
    with pytest.raises(ValueError, match="text encoder has width 16"):
        SanaPipeline.from_pipe(sana, transformer=other)
    stock = diffusers.SanaTransformer2DModel.from_config(dict(sana.transformer.config))
    with pytest.raises(ValueError, match=r"diffusers.*SanaTransformer2DModel, which cannot"):
        SanaPipeline.from_pipe(sana, transformer=stock)


class TestOffload:
    """Weights are elsewhere until they are needed: what is not fetched is seen."""

    def test_sequential(self, sana, quick):
        arguments = quick | {"generator": 1, "pag_scale": 1.0}
        expected = latents_of(sana, "a cat", **arguments)
        # What `enable_sequential_cpu_offload` does, which itself asks for an accelerator.
        for module in (sana.text_encoder, sana.transformer, sana.vae):
            accelerate.cpu_offload(module, torch.device("cpu"), offload_buffers=True)
        assert all(parameter.is_meta for parameter in sana.transformer.parameters())
        for _ in range(2):
            got = latents_of(sana, "a cat", **arguments)
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
        assert sana("a cat", **quick).images[0].size == (32, 32)

    def test_whole_models(self, sana, quick):
        arguments = quick | {"generator": 1}
        expected = latents_of(sana, "a cat", **arguments)
        sana.enable_model_cpu_offload(device="cpu")
        moved = []
        for name in ("text_encoder", "transformer", "vae"):
            hook = getattr(sana, name)._hf_hook
            before = hook.pre_forward

            def watch(module, *args, name=name, before=before, **kwargs):
                moved.append(name)
                return before(module, *args, **kwargs)

            hook.pre_forward = watch
        sana("a cat", **arguments)
        assert list(dict.fromkeys(moved)) == ["text_encoder", "transformer", "vae"]
        got = latents_of(sana, "a cat", **arguments)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)

    @pytest.mark.parametrize("kind", ["sana", "controlnet"])
    @pytest.mark.parametrize(
        "options", [{}, {"offload_type": "block_level", "num_blocks_per_group": 1}]
    )
    def test_groups_on_disk(self, request, quick, tmp_path, kind, options):
        """On disk the parameters in memory are NaN until they are fetched."""
        pipe = request.getfixturevalue(kind)
        arguments = quick | {"generator": 1, "output_type": "np"}
        if kind == "controlnet":
            arguments["control_image"] = torch.rand(1, 3, 32, 32)
        expected = pipe("a cat", **arguments).images
        pipe.enable_group_offload("cpu", offload_to_disk_path=str(tmp_path), **options)
        got = pipe("a cat", **arguments).images
        assert abs(got - expected).max() < 1e-3

    def test_excluded_components(self, sana, quick, tmp_path):
        arguments = {"offload_to_disk_path": str(tmp_path), "exclude_modules": ["vae"]}
        sana.enable_group_offload("cpu", **arguments)
        assert not (tmp_path / "vae").exists() and (tmp_path / "transformer").exists()
        assert sana("a", **quick).images[0].size == (32, 32)
        with pytest.raises(ValueError, match="unet"):
            sana.enable_group_offload("cpu", exclude_modules="unet")

    def test_hooks_go_home_after_an_error(self, sana, quick, monkeypatch):
        freed = []
        monkeypatch.setattr(sana, "maybe_free_model_hooks", lambda: freed.append(1))
        with pytest.raises(RuntimeError, match="stop"):

            def stop(*args):
                raise RuntimeError("stop")

            sana("a", callback_on_step_end=stop, **quick)
        assert freed == [1]

    @pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without one")
    @pytest.mark.parametrize("name", ["enable_model_cpu_offload", "enable_sequential_cpu_offload"])
    def test_without_an_accelerator(self, sana, name):
        with pytest.raises(RuntimeError, match="accelerator"):
            getattr(sana, name)()


def test_moving_and_casting(sana, quick):
    sana.to(torch.bfloat16)
    assert sana.dtype == torch.bfloat16
    assert sana("a", **quick).images[0].size == (32, 32)
    sana.to("cpu", torch.float32)
    assert sana("a", **quick).images[0].size == (32, 32)


def test_sprint_folder_of_image_to_image(saved, tmp_path):
    copy = shutil.copytree(saved("sprint").folder, tmp_path / "copy")
    edit_index(copy, _class_name="SanaSprintImg2ImgPipeline")
    assert SanaSprintPipeline.from_pretrained(copy).transformer.config.guidance_embeds

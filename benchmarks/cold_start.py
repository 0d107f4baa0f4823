# SPDX-License-Identifier: Apache-2.0
"""The tiny FLUX.2 pipeline from an empty cache, and in a new process that finds the cache filled.

programs                    programs that the first image needed
ms_per_compile              what each of them added to the first image: lowering, compiling, loading
compile_latency_ms          mean time from the start to the end of one compile, while others run beside it
first_image_s               device placement and first image, empty cache
warm_process_first_image_s  the same in a new process with the filled cache (it compiles nothing)
warm_call_s                 another image in that process
placement_s                 of that, `pipe.to("neuron")`: imports of the package, and copies of the weights
warm_ratio                  the first call in that process / another one
import_overhead_s           what autoloading the device adds to `import torch`
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from .measure import child, interleaved, print_result, print_table, python, seconds

IMPORT_ROUNDS = 7


def paint(checkpoint: str) -> None:
    """The child: two images; reports times and counters."""
    import torch
    from diffusers import Flux2KleinPipeline

    from torch_neuronx import metrics

    metrics.set_enabled(True)
    pipe = Flux2KleinPipeline.from_pretrained(checkpoint, dtype=torch.bfloat16)
    pipe.set_progress_bar_config(disable=True)

    def call() -> None:
        generator = torch.Generator().manual_seed(0)
        pipe(prompt="A cat", height=256, width=256, num_inference_steps=4, generator=generator)

    placement = seconds(lambda: pipe.to("neuron"))
    first = seconds(call)
    compiled = metrics.get_counter_value("CompilationCache.TotalCompilations")
    _, compile_seconds, _ = metrics.get_metric_data("CompileTime") or (0, 0.0, [])
    warm = statistics.median(seconds(call) for _ in range(3))
    result = {"placement": placement, "first": first, "warm": warm, "programs": compiled}
    print(json.dumps({**result, "compile_seconds": compile_seconds}))


def import_time(autoload: str) -> float:
    """Seconds that `import torch` takes in a new process."""
    program = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
    return float(python("-c", program, environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--paint", metavar="CHECKPOINT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.paint:
        paint(options.paint)
        return

    with tempfile.TemporaryDirectory() as directory:
        checkpoint = os.path.join(directory, "tiny-flux2")
        maker = Path(__file__).parent.parent / "examples" / "make_tiny_flux2.py"
        python(str(maker), checkpoint)
        environment = {"TORCH_NEURONX_NEFF_CACHE_DIR": os.path.join(directory, "neff_cache")}
        cold, warm = (child("benchmarks.cold_start", "--paint", checkpoint, environment=environment) for _ in range(2))
    imports = interleaved(IMPORT_ROUNDS, {"with": lambda: import_time("1"), "without": lambda: import_time("0")})
    if warm["programs"]:
        raise RuntimeError(f"{warm['programs']} programs were compiled although the cache was filled")

    result = {
        "programs": cold["programs"],
        "ms_per_compile": (cold["first"] - cold["warm"]) / max(1, cold["programs"]) * 1e3,
        "compile_latency_ms": cold["compile_seconds"] / max(1, cold["programs"]) * 1e3,
        "first_image_s": cold["placement"] + cold["first"],
        "warm_process_first_image_s": warm["placement"] + warm["first"],
        "placement_s": warm["placement"],
        "warm_call_s": warm["warm"],
        "warm_ratio": warm["first"] / warm["warm"],
        "import_overhead_s": imports["with"] - imports["without"],
    }
    print_table(
        [
            ("programs compiled for the first image", f"{result['programs']:.0f}"),
            ("added to it by each program", f"{result['ms_per_compile']:.1f} ms"),
            ("one compile among others, mean", f"{result['compile_latency_ms']:.1f} ms"),
            ("first image, empty cache", f"{result['first_image_s']:.2f} s"),
            ("first image in a new process, cache filled", f"{result['warm_process_first_image_s']:.2f} s"),
            ("another image in that process", f"{result['warm_call_s']:.2f} s"),
            ("import torch, added by the device", f"{result['import_overhead_s']:.3f} s"),
        ]
    )
    print_result(result)


if __name__ == "__main__":
    main()

"""Two layers of latents: one VGP over both, or one for each from the bottom up; on MNIST reduced to 14 × 14, on a CPU.

    VGP_DATA=... python benchmarks/layers.py [--quick]

20 and 10 latent variables, networks of two layers of 100 and of 50 tanh units, 15 epochs at batch 100. Expected: both
forms ahead of the mean-field from the bottom up, and the chain of two VGPs ahead of the one over both layers.
"""

import dataclasses

import ablation
import record

from vgp.experiments import rows

COMMON = {"architecture": "small", "batch": 100, "epochs": 15}
SMALL = {"num_data": 32, "latent_dim": 10}
VARIANTS = {
    "mean-field, from the bottom up": rows.find("dlgm2-vae"),
    "VGP, from the bottom up": dataclasses.replace(rows.find("dlgm2-vgp"), **SMALL),
    "VGP over both layers": dataclasses.replace(rows.find("dlgm2-vgp-joint"), **SMALL),
}


def main() -> None:
    rows.ARCHITECTURES["small", 2] = ((20, 10), ((100, 100), (50, 50)))
    for figures in ablation.compared(COMMON, VARIANTS, ablation.reduced()):
        if not ablation.QUICK:
            record.write("layers", COMMON, figures)


if __name__ == "__main__":
    main()

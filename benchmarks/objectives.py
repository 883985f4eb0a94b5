"""The paper's row taken apart: its objective and its optimiser, on MNIST reduced to 14 × 14, on a CPU.

    VGP_DATA=... python benchmarks/objectives.py [--quick]

The literal configuration, one layer of 100 tanh units and 100 latent variables; variational inputs per datapoint, c = d
and no rank, as in `dlgm1-vgp-paper`, but 16 of them; 10 epochs at batch 100. Expected: the analytic objective behind
the mean-field under either optimiser; ahead of it with f integrated out.
"""

import dataclasses

import ablation
import record

from vgp.experiments import rows

COMMON = {"architecture": "small-literal", "batch": 100, "epochs": 10}
PAPER = dataclasses.replace(rows.find("dlgm1-vgp-paper"), num_data=16)
MEANFIELD = dataclasses.replace(rows.find("dlgm1-vae"), optimizer="rmsprop", rate=PAPER.rate)
ADAM = {"optimizer": "adam", "rate": 1e-3}
INTEGRATED = {"bound": "importance"}
VARIANTS = {
    "mean-field": MEANFIELD,
    "VGP, analytic objective": PAPER,
    "VGP, f integrated out": dataclasses.replace(PAPER, **INTEGRATED),
    "mean-field, Adam": dataclasses.replace(MEANFIELD, **ADAM),
    "VGP, analytic objective, Adam": dataclasses.replace(PAPER, **ADAM),
    "VGP, f integrated out, Adam": dataclasses.replace(PAPER, **INTEGRATED, **ADAM),
}


def main() -> None:
    rows.ARCHITECTURES["small-literal", 1] = ((100,), ((100,),))
    for figures in ablation.compared(COMMON, VARIANTS, ablation.reduced()):
        if not ablation.QUICK:
            record.write("objectives", COMMON, figures)


if __name__ == "__main__":
    main()

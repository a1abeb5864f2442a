"""What the kernels and the model's body become on hardware that is not here: compiled, never executed."""

import os

# Read when jax is imported, hence here, ahead of every module of this package: no device is looked for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

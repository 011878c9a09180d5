"""JAX in double precision.

Importing any JAX room of saddles switches JAX to float64 for the whole process:
plateaus are exponentially close to saddles, and float32 loses them. Single
precision stays available where it is asked for (`precision="float32"`).
"""

import jax

jax.config.update("jax_enable_x64", True)

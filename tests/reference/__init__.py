"""Float64 numpy versions of every operation and of the whole forward pass, written from the maths.

They are what the shaders are tested against, so nothing here may be derived from a shader or import the engine.
Call the operations through their modules (`delta_rule.recurrent(...)`, not a name imported from it): `mutations.py`
swaps functions in these modules to show that the tests notice mistakes.
"""

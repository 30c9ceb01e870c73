"""The runtime: finds, checks, loads and runs stored artifacts. Imports neither the tracer nor the compiler; see
`precast.runtime.api.compile`.
"""

"""OCI registries: references to images, requests to a registry, and an image as an endpoint that keeps named bytes."""

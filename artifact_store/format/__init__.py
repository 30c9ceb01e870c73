"""What lies in a store: manifests, guards, blobs, records and their encoding; data only, no input or output."""

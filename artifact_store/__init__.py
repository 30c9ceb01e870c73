"""The artifact store: manifests, blobs, leases, pruning. Imports nothing heavy; see `Store.open`."""

from precast.artifact_store.format.blobs import BlobSet
from precast.artifact_store.format.errors import RecordError, StoreError
from precast.artifact_store.format.guards import Guard, Predicate
from precast.artifact_store.format.manifest import GraphRecord, Manifest, Versions
from precast.artifact_store.store import Store

__all__ = ["BlobSet", "GraphRecord", "Guard", "Manifest", "Predicate", "RecordError", "Store", "StoreError", "Versions"]

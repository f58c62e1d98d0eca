//! Cilium's pinned maps, typed, under their public names and layouts.

//! UUIDs of controllers.

use std::hash::{BuildHasher, RandomState};

/// UUIDs of the controllers in `GET /healthz` and `GET /endpoint/{id}`. A controller keeps its UUID for as long as the
/// agent runs and has another one in each run; as it is a keyed hash of the name, it is not stored.
#[derive(Clone, Debug, Default)]
pub struct ControllerUuids(RandomState);

impl ControllerUuids {
    /// Returns the UUID (RFC 9562, version 4) of the controller of that name.
    pub fn of(&self, controller: &str) -> String {
        let half = |part: u8| u128::from(self.0.hash_one((part, controller)));
        let bits = (half(0) << 64 | half(1)) & !(0xf << 76 | 0x3 << 62) | 4 << 76 | 2 << 62;
        let hex = format!("{bits:032x}");
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_keeps_its_uuid_in_a_run() {
        let uuids = ControllerUuids::default();
        let uuid = uuids.of("endpoint-gc");
        assert_eq!(uuid, uuids.of("endpoint-gc"));
        assert_ne!(uuid, uuids.of("status-collector"));
        assert_ne!(uuid, ControllerUuids::default().of("endpoint-gc"));
        let parts: Vec<&str> = uuid.split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && ["8", "9", "a", "b"].contains(&&parts[3][..1]), "{uuid}");
    }
}

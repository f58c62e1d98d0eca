//! The keys of devices in their write-ahead log, which names the devices of this agent in the kernel: `owner/name`, as
//! in Cilium.

use std::sync::Arc;

use state_file::LogKey;

/// The log of the devices that may be in the kernel.
pub(crate) type Wal = state_file::Wal<Key>;

/// Owner and name of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) owner: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl LogKey for Key {
    const OBJECTS: &'static str = "devices";
    const MAX_LENGTH: usize = 4096;
    const MAX_OBSOLETE_RECORDS: usize = 256;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.owner.as_bytes());
        out.push(b'/');
        out.extend(self.name.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        // Names have no slash.
        let (owner, name) = std::str::from_utf8(bytes).ok()?.rsplit_once('/')?;
        Some(Key { owner: Arc::from(owner), name: Arc::from(name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_form_of_cilium() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/device-reconciler.wal");
        let mut wal = Wal::open(&path).unwrap();
        let [first, second] =
            [("a", "d0"), ("n/b", "d1")].map(|(owner, name)| Key { owner: owner.into(), name: name.into() });
        wal.insert([first.clone(), second.clone()]).unwrap();
        wal.remove([first]).unwrap();
        let record = |deleted: u8, text: &str| {
            [&[text.len() as u8 + 2, 0, 0, 0, 0, 0, 0, 0][..], &[deleted, 1], text.as_bytes()].concat()
        };
        let content = std::fs::read(&path).unwrap();
        assert_eq!(content, [record(0, "a/d0"), record(0, "n/b/d1"), record(1, "a/d0")].concat());
        assert_eq!(Wal::open(&path).unwrap().keys().iter().collect::<Vec<_>>(), [&second]);
    }
}

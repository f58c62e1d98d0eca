//! Collections in a folder of the bpf file system: programs of one load that another process takes without loading.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

use crate::bpffs::{names_in, unpin};
use crate::error::{Error, Result};
use crate::object::Collection;
use crate::prog::Program;
use crate::raw_map::{RawMap, UpdateMode};
use crate::spec::{MapFlags, MapSpec, MapType};

/// The pin of the array that holds the record. It is made last and removed first: without it the folder is incomplete.
const RECORD: &str = "record";

impl Collection {
    /// Pins the programs and these maps in a folder, with a record of what they were loaded from. Replaces what is there.
    pub fn pin(&self, folder: &Path, maps: &[&str], record: &[u8]) -> Result<()> {
        Collection::unpin(folder)?;
        std::fs::create_dir_all(folder).map_err(|e| Error::file("create folder", folder, e))?;
        for (name, program) in &self.programs {
            program.pin(&folder.join(name))?;
        }
        for name in maps {
            self.map(name)?.pin(&folder.join(name))?;
        }
        let spec = MapSpec::new(RECORD, MapType::Array, 4, record.len() as u32, 1, MapFlags::NONE);
        let array = RawMap::create(&spec)?;
        array.update(&0u32.to_ne_bytes(), record, UpdateMode::Any)?;
        array.pin(&folder.join(RECORD))
    }

    /// Opens what [`Collection::pin`] has pinned in a folder: `None` unless it has that record, exactly the programs of
    /// these names, and these maps.
    pub fn open(
        folder: &Path,
        programs: &BTreeSet<&str>,
        maps: &[&str],
        record: &[u8],
    ) -> Result<Option<Collection>> {
        let pins = names_in(folder)?;
        let expected = programs.iter().chain(maps).copied().chain([RECORD]);
        if pins.iter().map(String::as_str).collect::<BTreeSet<&str>>() != expected.collect() {
            return Ok(None);
        }
        let array = RawMap::open(&folder.join(RECORD))?;
        if array.layout().map_type != MapType::Array || array.layout().value_size as usize != record.len() {
            return Ok(None);
        }
        let mut found = vec![0; array.value_len()];
        if !array.lookup(&0u32.to_ne_bytes(), &mut found)? || found[..record.len()] != *record {
            return Ok(None);
        }
        let mut opened = Collection { programs: BTreeMap::new(), maps: BTreeMap::new() };
        for name in programs {
            let program = Program::open(&folder.join(name))?;
            if !program.is_classifier_named(name)? {
                return Ok(None);
            }
            opened.programs.insert((*name).to_owned(), program);
        }
        for name in maps {
            opened.maps.insert((*name).to_owned(), RawMap::open(&folder.join(name))?);
        }
        Ok(Some(opened))
    }

    /// Removes such a folder.
    pub fn unpin(folder: &Path) -> Result<()> {
        unpin(&folder.join(RECORD))?;
        for name in names_in(folder)? {
            unpin(&folder.join(name))?;
        }
        match std::fs::remove_dir(folder) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::file("remove folder", folder, e)),
            _ => Ok(()),
        }
    }
}

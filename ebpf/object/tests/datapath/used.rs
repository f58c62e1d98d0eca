//! Objects that tests have used are as new ones for the next test.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use aya::{EbpfLoader, VerifierLogLevel};
use bpf::RawMap;
use datapath_abi::{NodeConfig, Pod as _};
use datapath_object::{FROM_CONTAINER, NODE_CONFIG, PROGRAMS};

use crate::kit::*;
use crate::l4::*;
use crate::service::*;

/// Keys and values of each map, by name.
type Contents = BTreeMap<String, (Vec<u8>, Vec<u8>)>;

/// Reads all maps of the programs whose values are bytes.
fn contents(datapath: &Datapath) -> Result<Contents> {
    let mut contents = Contents::new();
    for program in PROGRAMS {
        let ids = datapath.program(program.name)?.info()?.map_ids()?.context("no maps")?;
        for map in ids.into_iter().map(RawMap::open_id) {
            let map = map?;
            if !map.layout().map_type.holds_objects() {
                contents.insert(format!("{} {}", map.name(), map.layout()), map.entries()?);
            }
        }
    }
    Ok(contents)
}

#[test]
fn a_used_object_is_as_a_new_one() -> Result<()> {
    test_kit::require_root!();
    // Of no other test.
    let config = NodeConfig { trace_payload_len: 97, maglev: 0, ct_accounting: 1, ..default_config() };
    let id = |datapath: &Datapath| -> Result<u32> { Ok(datapath.program(FROM_CONTAINER)?.info()?.id()) };
    let mut loader = EbpfLoader::new();
    loader
        .override_global(NODE_CONFIG, config.as_bytes(), true)
        .verifier_log_level(VerifierLogLevel::DISABLE);
    let new = contents(&Datapath::load_with(&mut loader)?)?;
    let mut node = Node::with(&config, Family::V6, UDP, &[Family::V6.b(8080)])?;
    node.datapath.set_utime_offset(5)?;
    node.datapath.set_subnet(OUTSIDE_V4.into(), 24, 3)?;
    node.datapath.add_device(7)?;
    let outcome = node.datapath.sends(&Family::V6.packet(UDP, 0))?;
    assert_eq!(seen_at(&outcome).destination, Family::V6.b(8080));
    let (first, used) = (id(&node.datapath)?, contents(&node.datapath)?);
    let changed = new.iter().filter(|(name, rows)| used[*name] != **rows).count();
    assert!(changed >= 12, "{changed} maps have other contents");
    drop(node);

    let mut datapath = Datapath::load(&config)?;
    assert_eq!(id(&datapath)?, first, "another object");
    for (name, rows) in contents(&datapath)? {
        assert!(rows == new[&name], "{name} is not as at first");
    }
    // Of maps of policies, too: without one all is denied.
    datapath.add_pods_and_host()?;
    assert_eq!(datapath.sends(&Family::V6.packet(UDP, 0))?.verdict, PASS);
    Ok(())
}

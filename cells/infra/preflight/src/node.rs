//! The state of a node: pinned maps and records of endpoints, compared with a configuration. Nothing is changed.

use std::path::Path;

use bpf::{Layout, RawMap, Verdict, names_in};
use endpoints::restore::plan::{Discarded, Ignored, Restored};
use endpoints::{Record, StateFolder, kernel_links};
use hive::Hive;
use maps::{
    FamilyConfig, MapsConfig, OWN_MAPS, POLICY_PREFIX, SCHEMA, Specs, is_opened_as_is, recorded_schema,
};

use crate::Error;
use crate::report::{EndpointFinding, EndpointOutcome, MapFinding, MapOutcome};

/// The folder of the maps below the root of the bpf file system.
const GLOBALS: &str = "tc/globals";
/// The own map with the version of the entries' meaning.
const SCHEMA_MAP: &str = "ep_schema";

/// Compares the pins below the root of a bpf file system with the maps of a configuration. Reading them needs root.
pub fn maps(hive: &Hive, root: &Path) -> Result<Vec<MapFinding>, Error> {
    let specs = Specs::new(hive.config::<MapsConfig>()?, hive.config::<FamilyConfig>()?)
        .with_settings(hive.settings());
    let globals = root.join(GLOBALS);
    let of_node = specs.of_node();
    let pins = names_in(&globals)?;
    let missing = of_node.iter().filter(|spec| !pins.iter().any(|pin| *pin == spec.name));
    let mut findings: Vec<MapFinding> =
        missing.map(|spec| finding(&spec.name, MapOutcome::Created, "has no pin yet".to_owned())).collect();
    for name in pins {
        let in_force = of_node.iter().any(|spec| spec.name == name)
            || OWN_MAPS.contains(&name.as_str())
            || name.starts_with(POLICY_PREFIX);
        let Some(spec) = specs.find(&name).filter(|_| in_force) else {
            let reason = match specs.find(&name) {
                Some(_) => "its feature is not in force",
                None => "is none of an agent of this version",
            };
            findings.push(finding(&name, MapOutcome::LeftAlone, reason.to_owned()));
            continue;
        };
        let pin = RawMap::open(&globals.join(&name))?;
        let (outcome, reason) = judge(&name, &spec.reported_layout(), &pin)?;
        findings.push(finding(&name, outcome, reason));
    }
    findings.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(findings)
}

/// Compares a pinned map that is in use with its desired layout.
fn judge(name: &str, desired: &Layout, pin: &RawMap) -> Result<(MapOutcome, String), Error> {
    let found = pin.layout();
    let sizes = format!("entries {} -> {}", found.max_entries, desired.max_entries);
    let flags = format!("flags {:#x} -> {:#x}", found.flags.0, desired.flags.0);
    if name == SCHEMA_MAP && recorded_schema(pin)? > SCHEMA {
        let reason = "is of a newer agent: run that one, or agent cleanup --bpf-state".to_owned();
        return Ok((MapOutcome::Refused, reason));
    }
    if is_opened_as_is(name) && is_same_entry(desired, &found) {
        return Ok((MapOutcome::Kept, format!("as it is, {} entries at most", found.max_entries)));
    }
    Ok(match desired.compare(&found) {
        Verdict::Reuse => (MapOutcome::Kept, format!("{} entries at most", found.max_entries)),
        Verdict::Refuse(why) if OWN_MAPS.contains(&name) => {
            (MapOutcome::Recreated, format!("{why}; filled again from the endpoints"))
        }
        Verdict::Refuse(why) if name.starts_with(POLICY_PREFIX) => (
            MapOutcome::Recreated,
            format!("{why}; the endpoint is denied everything until its policy is computed"),
        ),
        Verdict::Refuse(why) => {
            (MapOutcome::Refused, format!("{why}: remove the pin, or run agent cleanup --bpf-state"))
        }
        Verdict::Replace => (MapOutcome::Recreated, format!("{sizes}, {flags}")),
        Verdict::Migrate if found.max_entries <= desired.max_entries => {
            let changed = if found.max_entries < desired.max_entries { sizes } else { flags };
            (MapOutcome::Copied, changed)
        }
        Verdict::Migrate => {
            let count = pin.entries()?.0.len() / found.key_size as usize;
            // As at a start: connections and policies live by their entries, others must not be lost silently.
            let stays = found.map_type.is_written_by_programs() || name.starts_with(POLICY_PREFIX);
            match (count > desired.max_entries as usize, stays) {
                (false, _) => (MapOutcome::Copied, sizes),
                (true, true) => (MapOutcome::Kept, format!("{sizes}, but it has {count} entries")),
                (true, false) => {
                    (MapOutcome::Refused, format!("{sizes}, but it has {count} entries: raise the option"))
                }
            }
        }
    })
}

fn is_same_entry(desired: &Layout, found: &Layout) -> bool {
    (desired.key_size, desired.value_size) == (found.key_size, found.value_size)
}

fn finding(name: &str, outcome: MapOutcome, reason: String) -> MapFinding {
    MapFinding { name: name.to_owned(), outcome, reason }
}

/// Returns the plan of a restore of the endpoints below the run folder (`/var/run/cilium`).
pub fn endpoints(run: &Path) -> Result<Vec<EndpointFinding>, Error> {
    let plan = StateFolder::new(run.join("state")).preview(&kernel_links()?)?;
    let restored = plan.restore.into_iter().map(|Restored { directory, record }| EndpointFinding {
        directory,
        owner: owner(&record),
        outcome: EndpointOutcome::Restored,
        reason: addresses(&record),
    });
    let without_owner = |directory, outcome, reason| {
        let owner = String::new();
        EndpointFinding { directory, owner, outcome, reason }
    };
    let discarded = plan.discard.into_iter().map(|Discarded { directory, reason, .. }| {
        without_owner(directory, EndpointOutcome::Discarded, reason.to_string())
    });
    let ignored = plan
        .ignore
        .into_iter()
        .map(|Ignored { directory, problem }| without_owner(directory, EndpointOutcome::Ignored, problem));
    let damaged = plan.damaged.into_iter().map(|Ignored { directory, problem }| {
        without_owner(directory, EndpointOutcome::Quarantined, problem)
    });
    let mut findings: Vec<EndpointFinding> =
        restored.chain(discarded).chain(ignored).chain(damaged).collect();
    let id = |finding: &EndpointFinding| {
        let digits = finding.directory.split('_').next().unwrap_or_default();
        digits.parse::<u64>().unwrap_or(u64::MAX)
    };
    findings.sort_by(|a, b| (id(a), &a.directory).cmp(&(id(b), &b.directory)));
    Ok(findings)
}

fn owner(record: &Record) -> String {
    match (record.is_host(), record.pod_name()) {
        (true, _) => "the host".to_owned(),
        (false, pod) if pod == "/" => record.if_name.clone(),
        (false, pod) => format!("{pod} ({})", record.if_name),
    }
}

fn addresses(record: &Record) -> String {
    let addresses: Vec<String> = record.addresses().map(|address| address.to_string()).collect();
    format!("identity {}, {}", record.identity(), addresses.join(", "))
        .trim_end_matches([',', ' '])
        .to_owned()
}

#[cfg(test)]
mod tests {
    use bpf::{BpfFs, MapFlags, MapSpec, MapType, UpdateMode};
    use endpoints::Record;
    use hive::prelude::*;
    use test_kit::{Sandbox, require_root};

    use super::*;

    /// Pins as Cilium or another version has left them, and the configuration that a start compares them with.
    #[test]
    fn pins_of_another_agent_are_kept_copied_or_refused() {
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        let fs = BpfFs::open(sandbox.bpf_root()).unwrap();
        let specs = Specs::new(MapsConfig::default(), FamilyConfig::default());
        let pin = |name: &'static str, change: &dyn Fn(&mut MapSpec)| {
            let mut spec =
                specs.find(name).unwrap_or(MapSpec::new(name, MapType::Hash, 4, 4, 1, MapFlags::NONE));
            change(&mut spec);
            let map = RawMap::create(&spec).unwrap();
            map.pin(&fs.map(name)).unwrap();
            map
        };
        pin("cilium_lxc", &|_| {});
        let devices = pin("cilium_devices", &|spec| spec.layout.max_entries *= 2);
        pin("cilium_metrics", &|spec| spec.layout.max_entries *= 2);
        pin("cilium_call_policy", &|spec| spec.layout.max_entries /= 2);
        pin("cilium_ipcache_v2", &|spec| spec.layout.value_size += 4);
        pin("cilium_lb4_backends_v3", &|spec| spec.layout.map_type = MapType::LruHash);
        pin("cilium_policy_v2_00007", &|spec| spec.layout.max_entries *= 2);
        pin("cilium_snat_v4_external", &|_| {});
        pin("cilium_of_the_future", &|_| {});
        for name in ["ep_ids", "ep_config"] {
            pin(name, &|spec| spec.layout.max_entries /= 2);
        }
        let schema = pin("ep_schema", &|_| {});
        schema.update(&[0; 4], &(SCHEMA + 1).to_ne_bytes(), UpdateMode::Any).unwrap();

        let hive = Hive::builder([
            module("maps", "Maps", [config::<MapsConfig>()]),
            module("families", "Families", [config::<FamilyConfig>()]),
        ]);
        let hive = hive.build().unwrap();
        let judged = || -> Vec<(String, MapOutcome, String)> {
            let findings = maps(&hive, &sandbox.bpf_root()).unwrap().into_iter();
            findings.map(|finding| (finding.name, finding.outcome, finding.reason)).collect()
        };
        let of = |name: &str| {
            let found = judged().into_iter().find(|(found, ..)| found == name);
            found.map(|(_, outcome, reason)| (outcome, reason)).unwrap()
        };
        let pins = || names_in(&fs.globals()).unwrap();
        let before = pins();
        for (name, outcome, reason) in [
            ("cilium_lxc", MapOutcome::Kept, "65535 entries at most"),
            ("cilium_devices", MapOutcome::Copied, "entries 1024 -> 512"),
            ("cilium_metrics", MapOutcome::Copied, "entries 2048 -> 1024"),
            ("cilium_call_policy", MapOutcome::Recreated, "entries 32767 -> 65535"),
            ("cilium_ipcache_v2", MapOutcome::Refused, "the values differ in size: remove the pin"),
            ("cilium_lb4_backends_v3", MapOutcome::Refused, "the types differ: remove the pin"),
            ("cilium_policy_v2_00007", MapOutcome::Copied, "entries 32768 -> 16384"),
            ("cilium_snat_v4_external", MapOutcome::LeftAlone, "its feature is not in force"),
            ("cilium_of_the_future", MapOutcome::LeftAlone, "is none of an agent of this version"),
            ("cilium_ct4_global", MapOutcome::Created, "has no pin yet"),
            ("ep_schema", MapOutcome::Refused, "is of a newer agent"),
        ] {
            let (found, text) = of(name);
            assert!(found == outcome && text.starts_with(reason), "{name}: {found:?} {text}");
        }
        // More entries than the new size: connections would be kept, these are not lost silently.
        for key in 0..600_u32 {
            devices.update(&key.to_ne_bytes(), &[0; 16], UpdateMode::Any).unwrap();
        }
        assert_eq!(
            of("cilium_devices"),
            (MapOutcome::Refused, "entries 1024 -> 512, but it has 600 entries: raise the option".to_owned())
        );
        assert_eq!(pins(), before, "nothing is changed");
    }

    #[test]
    fn endpoints_of_the_previous_run_are_listed() {
        let run = tempfile::tempdir().unwrap();
        let state = StateFolder::new(run.path().join("state"));
        let record = |id, name: &str, if_name: &str| {
            let (k8s_namespace, k8s_pod_name) = ("shop".to_owned(), name.to_owned());
            Record { id, if_name: if_name.to_owned(), k8s_namespace, k8s_pod_name, ..Record::default() }
        };
        state.save(&Record { ipv4: Some([10, 0, 0, 7].into()), ..record(12, "web", "lo") }).unwrap();
        state.save(&record(9, "gone", "lxc_no_such")).unwrap();
        std::fs::create_dir(run.path().join("state/77")).unwrap();
        std::fs::write(run.path().join("state/77/ep_config.json"), "{").unwrap();
        let found: Vec<String> = endpoints(run.path())
            .unwrap()
            .into_iter()
            .map(|f| format!("{} {:?} {} {}", f.directory, f.outcome, f.owner, f.reason))
            .collect();
        assert_eq!(found[0], "9 Discarded  interface lxc_no_such could not be found");
        assert_eq!(found[1], "12 Restored shop/web (lo) identity 0, 10.0.0.7");
        assert!(found[2].starts_with("77 Quarantined  "), "{found:?}");
        assert!(run.path().join("state/77/ep_config.json").exists() && run.path().join("state/9").exists());
    }
}

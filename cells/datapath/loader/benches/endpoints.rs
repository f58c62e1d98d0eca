//! Benchmarks of the datapath's control plane: endpoints, restart, programs, maps. Prints a row per value (name,
//! measured, unit, goal, met, peer), tab separated. Peers are the same steps with a program load and a tcx link for
//! each endpoint.
#![expect(clippy::print_stdout, reason = "a benchmark prints its rows")]

#[path = "../tests/kit/mod.rs"]
mod kit;

use std::collections::BTreeSet;
use std::time::Instant;

use datapath_api::{Datapath, EndpointDatapath};
use devices::Netlink;
use kit::{maps, node_config, pod, start};
use loader::device_links::{self, Place, Style};
use loader::{KernelDatapath, ProgramSet, host};
use maps::{FamilyConfig, Maps, MapsConfig};
use test_kit::Sandbox;

fn main() {
    if !test_kit::is_root() {
        return;
    }
    open_maps();
    endpoints();
    devices();
}

/// Prints a row; `goal` is an upper bound.
fn row(name: &str, measured: f64, unit: &str, goal: f64, peer: &str) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("{name}\t{measured:.3}\t{unit}\t{goal}\t{met}\t{peer}");
}

/// Returns the duration of `work` in milliseconds, and its result.
fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let begin = Instant::now();
    let value = work();
    (begin.elapsed().as_secs_f64() * 1e3, value)
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn open_maps() {
    let sandbox = Sandbox::new().unwrap();
    let config =
        MapsConfig { bpf_root: sandbox.bpf_root().to_str().unwrap().to_owned(), ..MapsConfig::default() };
    let fresh = Maps::new(config.clone(), FamilyConfig::default());
    let (first, ()) = timed(|| fresh.open().unwrap());
    row("maps: those in use, created", first, "ms", 20.0, "-");
    let (rest, _) = timed(|| fresh.open_rest(2).unwrap());
    row("maps: the others, created", rest, "ms", 150.0, "-");
    let again = Maps::new(config, FamilyConfig::default());
    let (reused, ()) = timed(|| again.open().unwrap());
    row("maps: those in use, opened", reused, "ms", 5.0, "-");
}

fn endpoints() {
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let empty = KernelDatapath::new(maps.clone(), kit::OPTIONS);
    let (filled, _) = timed(|| empty.pool().tend().unwrap());
    row("policy maps: 256 made ready", filled, "ms", 20.0, "2000 (one by one)");
    drop(empty);
    let load = || timed(|| ProgramSet::load(&maps, node_config()).unwrap()).0;
    row("programs: load", median((0..5).map(|_| load()).collect()), "ms", 100.0, "-");

    let datapath = start(&maps);
    let pods: Vec<EndpointDatapath> = (1..=200).map(|id| pod(&sandbox, id)).collect();
    let attach: Vec<f64> = pods[..100].iter().map(|p| timed(|| datapath.attach(p).unwrap()).0).collect();
    row("endpoint: attach, p50 of 100", median(attach), "ms", 0.5, "43 (program load)");
    let up: Vec<f64> = pods[..100].iter().map(|p| timed(|| datapath.up(p).unwrap()).0).collect();
    row("endpoint: up, p50 of 100", median(up), "ms", 0.2, "-");
    let (storm, ()) = timed(|| {
        std::thread::scope(|scope| {
            for part in pods[100..].chunks(13) {
                let datapath = &datapath;
                scope.spawn(move || part.iter().for_each(|p| datapath.attach(p).unwrap()));
            }
        });
    });
    row("endpoint: attach, 100 from 8 threads", storm, "ms", 100.0, "-");
    let detach: Vec<f64> = pods[50..].iter().map(|p| timed(|| datapath.detach(p.id).unwrap()).0).collect();
    row("endpoint: detach, p50 of 150", median(detach), "ms", 0.2, "-");

    drop(datapath);
    let next = KernelDatapath::new(maps.clone(), kit::OPTIONS);
    let (restored, _) = timed(|| loader::restore(&next).unwrap());
    row("restart: 50 endpoints read and repaired", restored, "ms", 50.0, "-");
    let programs = std::sync::Arc::new(ProgramSet::load(&maps, node_config()).unwrap());
    let (switched, _) = timed(|| next.switch(programs, &mut Netlink::open().unwrap()).unwrap());
    row("restart: 200 interfaces switched", switched, "ms", 20.0, "8600 (program loads)");
    next.set_ready();
    let known: BTreeSet<u16> = (1..=50).collect();
    let (pruned, _) = timed(|| next.prune(&known).unwrap());
    row("restart: sweep", pruned, "ms", 50.0, "-");
}

fn devices() {
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let mut nl = Netlink::open().unwrap();
    let (made, devices) = timed(|| host::ensure_devices(&mut nl).unwrap());
    row("host devices: created", made, "ms", 20.0, "-");
    let programs = ProgramSet::load(&maps, node_config()).unwrap();
    if !bpf::probe().unwrap().tcx {
        return;
    }
    let style = Style { tcx: true, filter_priority: 1 };
    let place = |link: &devices::Link, program, egress| Place {
        device: link.name.clone(),
        ifindex: link.index,
        program,
        egress,
    };
    let places = [
        place(&devices.host, datapath_object::FROM_HOST, true),
        place(&devices.host, datapath_object::TO_HOST, false),
        place(&devices.net, datapath_object::TO_HOST, false),
    ];
    let attach_all = || {
        for place in &places {
            let program = programs.program(place.program).unwrap();
            device_links::attach(maps.fs(), style, place, program).unwrap();
        }
    };
    let (created, ()) = timed(attach_all);
    row("host devices: three tcx links created", created, "ms", 60.0, "-");
    let (updated, ()) = timed(attach_all);
    row("host devices: three tcx links updated", updated, "ms", 1.0, "-");
}

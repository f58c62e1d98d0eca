//! The cell in a hive, on the devices of a namespace.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use api::StatusSource;
use big_tcp::{BigTcp, Limits};
use devices::Netlink;
use devices::rtnetlink::{LinkSegments, SegmentSizes};
use hive::prelude::*;
use test_kit::{NetNs, Sandbox, require_root};

/// Options that are declared by other cells.
#[derive(Clone, Debug, hive::Config)]
struct OtherConfig {
    /// Serve services for clients outside
    #[flag(default = true)]
    #[expect(dead_code, reason = "read by its name")]
    kube_proxy_replacement: bool,
}

const ON: [(&str, &str); 6] = [
    ("enable-ipv4-big-tcp", "true"),
    ("enable-ipv6-big-tcp", "true"),
    ("routing-mode", "native"),
    ("enable-ipv4-masquerade", "false"),
    ("enable-ipv6-masquerade", "false"),
    ("devices", "ext+"),
];

fn hive(options: &[(&str, &str)]) -> TestHive {
    let options_of_others = [config::<maps::FamilyConfig>(), config::<OtherConfig>()];
    let cells = [
        statedb::cell(),
        devices::cell(),
        tunnel::cell(),
        masquerade::cell(),
        bundle(options_of_others),
        big_tcp::cell(),
        invoke(|_: Group<StatusSource>| ()),
    ];
    options.iter().fold(TestHive::needing::<BigTcp>(cells), |hive, (key, value)| hive.set(key, value))
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// Returns GSO and GRO sizes of IPv6, and of IPv4, as the kernel has them; `ip` of many systems knows the former only.
fn sizes(host: &NetNs, name: &str) -> [u32; 4] {
    let link = segments(host, name);
    let (v6, v4) = (link.ipv6.unwrap(), link.ipv4.unwrap());
    [v6.gso, v6.gro, v4.gso, v4.gro]
}

fn segments(host: &NetNs, name: &str) -> LinkSegments {
    let links = host.run(|| Netlink::open().unwrap().segments().unwrap());
    links.into_iter().find(|link| link.name == name).unwrap()
}

/// Sets GSO and GRO sizes of both families.
fn set_sizes(host: &NetNs, name: &str, gso: u32, gro: u32) {
    let (index, sizes) = (segments(host, name).index, Some(SegmentSizes { gso, gro }));
    host.run(|| Netlink::open().unwrap().set_segments(index, sizes, sizes).unwrap());
}

/// A node with a device that faces the network, and the agent's own devices.
fn node() -> (Sandbox, NetNs) {
    let sandbox = Sandbox::new().unwrap();
    let world = sandbox.netns("world").unwrap();
    sandbox.host().veth("ext0", &world, "eth0").unwrap();
    sandbox
        .host()
        .ip_batch("addr add 192.0.2.1/24 dev ext0\nlink add cilium_host type veth peer name cilium_net\n")
        .unwrap();
    world.ip("addr add 192.0.2.2/24 dev eth0").unwrap();
    (sandbox, world)
}

/// Returns the mean size of the segments of a bulk transfer that leave the host by `ext0`.
fn mean_segment(host: &NetNs, world: &NetNs) -> u64 {
    const BYTES: usize = 64 << 20;
    let counters = || {
        let read = |name: &str| -> u64 {
            let text = host.exec(&format!("cat /sys/class/net/ext0/statistics/{name}")).unwrap();
            text.trim().parse().unwrap()
        };
        (read("tx_bytes"), read("tx_packets"))
    };
    let listener = world.run(|| TcpListener::bind("192.0.2.2:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let before = counters();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = vec![0; 1 << 20];
            while stream.read(&mut buffer).unwrap() > 0 {}
        });
        let mut stream = host.run(|| TcpStream::connect(address)).unwrap();
        let data = vec![0; 1 << 20];
        (0..BYTES / data.len()).for_each(|_| stream.write_all(&data).unwrap());
    });
    let after = counters();
    (after.0 - before.0) / (after.1 - before.1)
}

#[test]
fn devices_get_larger_segments_and_lose_them_with_the_options() {
    require_root!();
    let (sandbox, world) = node();
    let host = sandbox.host();
    let large = [196_608; 4];
    let own = ["ext0", "cilium_host", "cilium_net"];
    assert_eq!(sizes(host, "ext0"), [65_536; 4]);
    let classic = mean_segment(host, &world);
    assert!(classic <= 65_536, "a control: {classic}");
    block_on(async {
        let mut hive = hive(&ON);
        hive.start().await;
        // By the start, as pods may be made at once.
        assert!(own.iter().all(|name| sizes(host, name) == large), "{:?}", own.map(|name| sizes(host, name)));
        let limits: Limits = hive.get::<BigTcp>().limits();
        assert_eq!((limits.ipv4.gso, limits.ipv6.gro), (196_608, 196_608));
        assert!(limits.is_ipv4_enabled && limits.is_ipv6_enabled);
        set_sizes(&world, "eth0", 65_536, 196_608);
        let mean = mean_segment(host, &world);
        assert!(mean > 65_536, "segments are larger than 64 KiB: {mean}, before {classic}");

        // A driver that sends less decides for all; the next one that goes gives it back.
        host.ip_batch("tuntap add ext1 mode tap\naddr add 192.0.2.129/25 dev ext1\nlink set ext1 up\n")
            .unwrap();
        let small = [65_536, 196_608, 65_536, 196_608];
        hive.until("the smallest driver", || sizes(host, "ext0") == small && sizes(host, "ext1") == small)
            .await;
        // They are stored after the devices have them.
        hive.until("its limit", || hive.get::<BigTcp>().limits().ipv4.gso == 65_536).await;
        host.ip("link del ext1").unwrap();
        hive.until("the larger sizes", || own.iter().all(|name| sizes(host, name) == large)).await;
        hive.stop().await;
        assert_eq!(sizes(host, "ext0"), large, "sizes stay at the stop");

        // Off: larger ones are lowered, smaller ones stay.
        set_sizes(host, "cilium_net", 30_000, 196_608);
        let mut hive = self::hive(&[("devices", "ext+")]);
        hive.start().await;
        hive.until("the former sizes", || sizes(host, "ext0") == [65_536; 4]).await;
        hive.until("sizes of the administrator", || {
            sizes(host, "cilium_net") == [30_000, 65_536, 30_000, 65_536]
        })
        .await;
        assert!(!hive.get::<BigTcp>().limits().is_ipv4_enabled);
        hive.stop().await;

        // One family alone.
        let mut one = ON;
        one[0].1 = "false";
        let mut hive = self::hive(&one);
        hive.start().await;
        assert_eq!(sizes(host, "ext0"), [196_608, 196_608, 65_536, 65_536]);
        hive.stop().await;
    });
}

#[test]
fn a_tunnel_of_this_kernel_decides_by_its_own_devices() {
    require_root!();
    let (sandbox, _world) = node();
    let host = sandbox.host();
    host.ip("link add probe type vxlan external dstport 7777").unwrap();
    let size = segments(host, "probe").tso_max.unwrap();
    host.ip("link del probe").unwrap();
    let mut tunnel = ON;
    tunnel[2].1 = "tunnel";
    block_on(async {
        let mut hive = hive(&tunnel);
        match hive.try_start().await {
            Ok(()) => assert!(size > 65_536, "{size}"),
            Err(error) => {
                let error = format!("{error:#}");
                assert!(error.contains(&format!("vxlan devices send at most {size} bytes")), "{error}");
                assert!(size <= 65_536, "{size}");
            }
        }
        assert!(host.ip("link show cilium_probe").is_err(), "the device of the probe is gone");
        let _ = hive.try_stop().await;
    });
    let contradicting =
        ON.map(|(key, value)| if key == "enable-ipv4-masquerade" { (key, "true") } else { (key, value) });
    block_on(async {
        let error = format!("{:#}", hive(&contradicting).try_start().await.unwrap_err());
        let text = "option enable-ipv4-big-tcp: true is impossible with enable-bpf-masquerade=false";
        assert!(error.contains(text), "{error}");
    });
}

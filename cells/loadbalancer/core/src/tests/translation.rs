//! Frontends with backends of the other family.

use datapath_abi::lb_flag2;

use super::*;

const PORTS: &str = "ports: [{port: 80, nodePort: 30080}]";

/// Returns a load balancer's service at an address, with slices of endpoints: kinds of addresses and lists.
fn web(address: &str, spec: &str, slices: &[(&str, &str)]) -> State {
    let mut text = format!(
        "services:\n- metadata: {{name: web, namespace: app}}\n  spec: {{type: LoadBalancer, {spec}, {PORTS}}}\n  \
         status: {{loadBalancer: {{ingress: [{{ip: '{address}'}}]}}}}\nendpoints:\n"
    );
    for (kind, addresses) in slices {
        let name = kind.to_lowercase();
        text += &format!(
            "- metadata: {{name: web-{name}, namespace: app, labels: {{kubernetes.io/service-name: web}}}}\n  \
             addressType: {kind}\n  ports: [{{name: '', port: 9090}}]\n  endpoints: [{{addresses: [{addresses}]}}]\n"
        );
    }
    state(&text)
}

/// An agent with the option: its writer, and the operations of its reconciler.
struct Agent {
    writer: ServicesWriter,
    addresses: RwTable<NodeAddress>,
    maps: Arc<FakeMaps>,
    /// Whether addresses of services without a class have entries for all their ports.
    owns_classless: bool,
}

impl Agent {
    fn new() -> Agent {
        let writer = writer_with(Rules { translation: true, ..Rules::default() });
        let addresses: RwTable<NodeAddress> = writer.frontends().db().table().unwrap();
        let row = |addr: &str| NodeAddress {
            addr: addr.parse().unwrap(),
            node_port: true,
            primary: true,
            device_name: "eth0".to_owned(),
        };
        addresses.transact(|txn| txn.insert(row("192.0.2.90")));
        Agent { writer, addresses, maps: Arc::default(), owns_classless: false }
    }

    /// Applies services as an agent that has just started, and returns the entries of load balancers and node ports.
    fn rows(&self, services: State) -> Vec<String> {
        let before: BTreeSet<LbAddress> = served(&self.writer).iter().map(Frontend::address).collect();
        assert_eq!(self.writer.replace(Source::Api, services), []);
        let frontends = self.writer.frontends();
        let context = ReconcileContext {
            settings: Settings {
                translation: true,
                maglev: false,
                owns_classless: self.owns_classless,
                ..settings()
            },
            addresses: Some(Arc::new((*self.addresses).clone())),
            frontends: frontends.clone(),
        };
        let balancer = Balancer::restore(self.maps.clone()).unwrap();
        let mut ops = LbOps { balancer, comparisons: Arc::default(), context, unserved: Default::default() };
        let snapshot = frontends.snapshot();
        for result in ops.upsert_batch(&snapshot, served(&self.writer).iter()) {
            result.unwrap();
        }
        let now: BTreeSet<LbAddress> = served(&self.writer).iter().map(Frontend::address).collect();
        let gone: Vec<LbAddress> = before.difference(&now).copied().collect();
        ops.delete_frontends(&snapshot, &gone).into_iter().for_each(|result| result.unwrap());
        ops.balancer.prune_but(|_| false).unwrap();
        let line = |(key, value): (Key, Value)| match (key, value) {
            (Key::Service(address, 0), Value::Service(row)) => {
                let is_translated = row.flags2 & lb_flag2::NAT_46X64 != 0;
                Some(format!("{address} {}{}", row.count, if is_translated { " translated" } else { "" }))
            }
            (Key::Backend(..), Value::Backend(row)) => Some(format!("backend {}", row.address)),
            (Key::SourceRange(_, range), _) => Some(format!("range {range}")),
            _ => None,
        };
        let is_of_cluster = |line: &String| line.contains("10.96.") || line.contains("fd00:96::");
        let mut lines: Vec<String> = self.maps.dump().into_iter().filter_map(line).collect();
        lines.retain(|line| !is_of_cluster(line));
        lines.sort();
        lines.dedup();
        lines
    }
}

#[test]
fn an_ipv4_frontend_has_ipv6_backends_at_its_twin() {
    let agent = Agent::new();
    let spec = "clusterIPs: [10.96.0.1], ipFamilies: [IPv4], loadBalancerSourceRanges: [198.51.100.0/24]";
    let service = |slices: &[(&str, &str)]| web("192.0.2.7", spec, slices);
    let other = ("IPv6", "'2001:db8:1::5'");
    let translated = agent.rows(service(&[other]));
    assert_eq!(
        translated,
        [
            "0.0.0.0:30080/TCP 0 translated",
            "192.0.2.7:80/TCP 0 translated",
            "192.0.2.90:30080/TCP 0 translated",
            "[::ffff:0.0.0.0]:30080/TCP 1 translated",
            "[::ffff:192.0.2.7]:80/TCP 1 translated",
            "[::ffff:192.0.2.90]:30080/TCP 1 translated",
            "backend [2001:db8:1::5]:9090/TCP",
            "range 198.51.100.0/24",
            "range ::ffff:198.51.100.0/120",
        ]
    );
    assert_eq!(agent.rows(service(&[other])), translated, "a restart writes the same");
    // An own backend takes precedence: the twins go. So do they with their frontend.
    let own = agent.rows(service(&[other, ("IPv4", "10.53.0.5")]));
    assert_eq!(
        own,
        [
            "0.0.0.0:30080/TCP 1",
            "192.0.2.7:80/TCP 1",
            "192.0.2.90:30080/TCP 1",
            "backend 10.53.0.5:9090/TCP",
            "range 198.51.100.0/24",
        ]
    );
    agent.rows(service(&[other]));
    assert_eq!(agent.rows(State::default()), [] as [String; 0]);
}

/// The twin's address is that of the frontend in another form: it must not take away the entry for all ports.
#[test]
fn a_twin_leaves_the_entry_for_all_ports_of_its_frontend() {
    let agent = Agent { owns_classless: true, ..Agent::new() };
    let spec = "clusterIPs: [10.96.0.1], ipFamilies: [IPv4]";
    let service = |slices: &[(&str, &str)]| web("192.0.2.7", spec, slices);
    let other = ("IPv6", "'2001:db8:1::5'");
    let wildcards = |lines: Vec<String>| -> Vec<String> {
        lines.into_iter().filter(|line| line.contains("/ANY")).collect()
    };
    assert_eq!(wildcards(agent.rows(service(&[other]))), ["192.0.2.7:0/ANY 0"]);
    // The twin goes.
    assert_eq!(wildcards(agent.rows(service(&[other, ("IPv4", "10.53.0.5")]))), ["192.0.2.7:0/ANY 0"]);
    assert_eq!(wildcards(agent.rows(State::default())), [] as [String; 0]);
}

#[test]
fn an_ipv6_frontend_has_ipv4_backends_as_mapped_addresses() {
    let agent = Agent::new();
    let spec = "clusterIPs: ['fd00:96::1'], ipFamilies: [IPv6]";
    let expected = [
        "[2001:db8::7]:80/TCP 1 translated",
        "[::]:30080/TCP 1 translated",
        "backend [::ffff:10.53.0.5]:9090/TCP",
    ];
    for _restart in 0..2 {
        assert_eq!(agent.rows(web("2001:db8::7", spec, &[("IPv4", "10.53.0.5")])), expected);
    }
}

/// The control: without the option frontends have backends of their own family only; nor have addresses of the cluster any
/// others with it.
#[test]
fn without_the_option_families_stay_apart() {
    let spec = "clusterIPs: [10.96.0.1], ipFamilies: [IPv4]";
    for translation in [false, true] {
        let writer = writer_with(Rules { translation, ..Rules::default() });
        let service = web("192.0.2.7", spec, &[("IPv6", "'2001:db8:1::5'")]);
        assert_eq!(writer.replace(Source::Api, service), []);
        for frontend in served(&writer) {
            let is_of_cluster = frontend.address().ip.to_string().starts_with("10.96.");
            let expected = usize::from(translation && !is_of_cluster);
            assert_eq!(frontend.backends.len(), expected, "{}", frontend.address());
        }
    }
}

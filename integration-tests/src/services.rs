//! Services of a node, by its state file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use bpf::RawMap;
use serde_json::{Value, json};
use test_kit::try_wait_until;

use crate::Node;

/// A service of type ClusterIP at port 80, and where its backends are, at port 8080.
#[derive(Clone, Debug, Default)]
pub struct ServiceFixture {
    /// Its name in namespace `default`.
    pub name: String,
    /// Its addresses, of either family.
    pub addresses: Vec<String>,
    /// Its backends' addresses, of either family.
    pub backends: Vec<String>,
    /// Its ports, each of TCP and of UDP; backends listen 8000 above.
    pub ports: Vec<u16>,
    /// More fields of its `spec`.
    pub spec: Value,
    /// Its `status`.
    pub status: Value,
}

impl ServiceFixture {
    /// A service at port 80.
    #[must_use]
    pub fn new(name: &str, addresses: &[&str], backends: &[&str]) -> ServiceFixture {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let (addresses, backends) = (texts(addresses), texts(backends));
        let name = name.to_owned();
        ServiceFixture { name, addresses, backends, ports: vec![80], spec: json!({}), status: json!({}) }
    }

    /// With more fields of `spec`.
    #[must_use]
    pub fn with(mut self, spec: Value) -> ServiceFixture {
        self.spec = spec;
        self
    }

    fn manifest(&self) -> Value {
        let mut spec = json!({"clusterIPs": self.addresses, "ports": self.ports_above(0)});
        for (field, value) in self.spec.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        json!({"metadata": {"name": self.name}, "spec": spec, "status": self.status})
    }

    /// The ports, moved so far.
    fn ports_above(&self, base: u16) -> Vec<Value> {
        let port = |port: &u16| {
            ["TCP", "UDP"].map(|protocol| {
                json!({"name": format!("{protocol}-{port}").to_lowercase(), "protocol": protocol, "port": base + port})
            })
        };
        self.ports.iter().flat_map(port).collect()
    }

    fn slices(&self) -> Vec<Value> {
        let slice = |kind: &str, v6: bool| {
            let of_family = self.backends.iter().filter(|ip| ip.contains(':') == v6);
            let endpoints: Vec<Value> = of_family.map(|ip| json!({"addresses": [ip]})).collect();
            json!({
                "metadata": {"name": format!("{}-{v6}", self.name), "labels": {"kubernetes.io/service-name": self.name}},
                "addressType": kind,
                "ports": self.ports_above(8000),
                "endpoints": endpoints,
            })
        };
        vec![slice("IPv4", false), slice("IPv6", true)]
    }
}

/// A state file that has these services.
#[must_use]
pub fn state_file(services: &[ServiceFixture]) -> String {
    let slices: Vec<Value> = services.iter().flat_map(ServiceFixture::slices).collect();
    let services: Vec<Value> = services.iter().map(ServiceFixture::manifest).collect();
    json!({"services": services, "endpoints": slices}).to_string()
}

/// A state file of so many services with one TCP port and one backend each, and these.
#[must_use]
pub fn many_services(count: u32, services: &[ServiceFixture]) -> String {
    let mut file: Value = state_file(services).parse().unwrap_or_default();
    for n in 1..=count {
        let [_, a, b, c] = n.to_be_bytes();
        let name = format!("s{n}");
        let service = json!({"metadata": {"name": name}, "spec": {"clusterIP": format!("11.{a}.{b}.{c}"), "ports": [{"port": 80}]}});
        let slice = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"port": 8080}],
            "endpoints": [{"addresses": [format!("12.{a}.{b}.{c}")]}],
        });
        for (key, object) in [("services", service), ("endpoints", slice)] {
            file[key].as_array_mut().into_iter().for_each(|list| list.push(object.clone()));
        }
    }
    file.to_string()
}

impl Node {
    /// The rows of the load balancer maps, as bytes.
    ///
    /// # Panics
    /// When a map cannot be read.
    #[must_use]
    pub fn service_rows(&self) -> BTreeMap<&'static str, BTreeMap<Vec<u8>, Vec<u8>>> {
        let names = [
            "cilium_lb4_services_v2",
            "cilium_lb6_services_v2",
            "cilium_lb4_backends_v3",
            "cilium_lb6_backends_v3",
            "cilium_lb4_reverse_nat",
            "cilium_lb6_reverse_nat",
            "cilium_lb4_source_range",
            "cilium_lb6_source_range",
            "cilium_lb_affinity_match",
        ];
        let rows = |name: &'static str| {
            let map = RawMap::open(&self.pin(name)).unwrap();
            let (layout, (keys, values)) = (map.layout(), map.entries().unwrap());
            let keys = keys.chunks(layout.key_size as usize).map(<[u8]>::to_vec);
            (name, keys.zip(values.chunks(layout.value_size as usize).map(<[u8]>::to_vec)).collect())
        };
        names.into_iter().map(rows).collect()
    }

    /// How long the agent's latest start took to bring the services of all sources into the maps once it knew them, in
    /// milliseconds, and how many such starts there were, as its log says.
    #[must_use]
    pub fn services_synced(&self) -> (usize, Option<u64>) {
        let log = self.log();
        let lines: Vec<&str> =
            log.lines().filter(|line| line.contains("Services of all sources are in the maps")).collect();
        let ms = lines.last().and_then(|line| line.split(" ms=").nth(1)?.split(' ').next()?.parse().ok());
        (lines.len(), ms)
    }

    /// Lets the agent follow a state file of that name from its next start on; the file is empty at first.
    pub fn follow_services(&mut self, file: &str) {
        let path = self.sandbox().dir().join(file);
        let options = [
            ("lb-state-file", path.to_str().unwrap()),
            ("lb-state-file-interval", "20ms"),
            ("lb-retry-backoff-min", "50ms"),
            ("lb-retry-backoff-max", "200ms"),
        ];
        self.config.extend(options.map(|(key, value)| (key.to_owned(), value.to_owned())));
        self.write_services("");
    }

    /// Renames a new state file into place.
    ///
    /// # Panics
    /// When it cannot be written, or no state file is followed.
    pub fn write_services(&self, text: &str) {
        let path = PathBuf::from(&self.config["lb-state-file"]);
        let draft = path.with_extension("draft");
        fs::write(&draft, text).unwrap();
        fs::rename(draft, path).unwrap();
    }

    /// Makes these all services of the node, and waits until the kernel has them.
    ///
    /// # Panics
    /// When that takes too long; the message holds the agent's log.
    pub fn serve(&self, services: &[ServiceFixture]) {
        self.write_services(&state_file(services));
        let sorted = |ips: &mut Vec<String>| ips.sort();
        let mut wanted: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for service in services {
            for address in &service.addresses {
                let mut ips = service.backends.clone();
                ips.retain(|ip| ip.contains(':') == address.contains(':'));
                sorted(&mut ips);
                wanted.insert(address.clone(), ips);
            }
        }
        let probe = || {
            let mut found = BTreeMap::new();
            for frontend in self.frontends().iter().filter(|frontend| frontend["Type"] == "ClusterIP") {
                if frontend["Status"]["kind"] != "Done" {
                    return Err(frontend.to_string());
                }
                let ip = |address: &Value| {
                    let (ip, _) = address.as_str().unwrap().rsplit_once(':').unwrap();
                    ip.trim_matches(['[', ']']).to_owned()
                };
                let mut ips: Vec<String> =
                    frontend["Backends"].as_array().unwrap().iter().map(|b| ip(&b["Address"])).collect();
                sorted(&mut ips);
                found.insert(ip(&frontend["Address"]), ips);
            }
            if found != wanted {
                return Err(format!("{found:?}"));
            }
            // A deleted frontend leaves its table before it leaves the maps.
            let left = self.addresses_of_no_frontend();
            if left.is_empty() { Ok(()) } else { Err(format!("still in the maps: {left:?}")) }
        };
        if let Err(error) = try_wait_until(Duration::from_secs(10), probe) {
            panic!("{error}\nlog of the agent:\n{}", self.log());
        }
    }

    /// Addresses of the service maps that the table of frontends does not have. That of all the node's, by which ports of
    /// nodes are found, is in no table.
    fn addresses_of_no_frontend(&self) -> BTreeSet<IpAddr> {
        let mut rows = self.service_rows();
        let mut keys = |name| rows.remove(name).unwrap_or_default().into_keys();
        let ipv4 =
            keys("cilium_lb4_services_v2").filter_map(|key| Some(IpAddr::from(*key.first_chunk::<4>()?)));
        let ipv6 =
            keys("cilium_lb6_services_v2").filter_map(|key| Some(IpAddr::from(*key.first_chunk::<16>()?)));
        let mut addresses: BTreeSet<IpAddr> =
            ipv4.collect::<Vec<_>>().into_iter().chain(ipv6).filter(|ip| !ip.is_unspecified()).collect();
        for frontend in self.frontends() {
            let (ip, _) = frontend["Address"].as_str().unwrap().rsplit_once(':').unwrap();
            addresses.remove(&ip.trim_matches(['[', ']']).parse().unwrap());
        }
        addresses
    }

    /// The rows of the table `frontends`.
    ///
    /// # Panics
    /// When the agent does not answer.
    #[must_use]
    pub fn frontends(&self) -> Vec<Value> {
        let answer = self.request("GET", "/statedb/dump", None).unwrap();
        let tables: Value = serde_json::from_str(&answer.body).unwrap();
        tables["frontends"].as_array().cloned().unwrap_or_default()
    }
}

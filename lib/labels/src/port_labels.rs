//! Named ports of a pod as labels, so that pods with different ports have different identities: a rule that names a
//! port has a policy row for each of these identities.
//!
//! Cilium's form: `gen:io.cilium.k8s.named-ports=dns.UDP.53_http.TCP.8080`, ports in the order of their names. A value
//! that exceeds the limit of a label continues in `...named-ports-1`, `-2` and so on.

use crate::label::{Label, LabelRef, PORTS};
use crate::named_ports::NamedPorts;

const KEY: &str = "io.cilium.k8s.named-ports";
/// Separates the ports of a value; cannot be part of a port's name.
const SEPARATOR: char = '_';
/// Maximum length of a label's value in bytes.
const MAX_VALUE_BYTES: usize = 63;
const PROTOCOLS: [(&str, u8); 3] = [("TCP", 6), ("UDP", 17), ("SCTP", 132)];

/// Returns the number of a protocol that has ports, by its name in Kubernetes.
pub fn port_protocol(name: &str) -> Option<u8> {
    PROTOCOLS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// Returns the labels of named ports; none without ports.
pub fn port_labels(ports: &NamedPorts) -> Vec<Label> {
    let mut values: Vec<String> = Vec::new();
    for (name, number, port) in ports.iter() {
        let Some((protocol, _)) = PROTOCOLS.iter().find(|(_, known)| *known == number) else { continue };
        let text = format!("{name}.{protocol}.{port}");
        match values.last_mut() {
            Some(value) if value.len() + 1 + text.len() <= MAX_VALUE_BYTES => {
                value.push(SEPARATOR);
                value.push_str(&text);
            }
            _ => values.push(text),
        }
    }
    let key = |index| if index == 0 { KEY.to_owned() } else { format!("{KEY}-{index}") };
    let label = |(index, value)| Label { key: key(index), value, source: PORTS.to_owned() };
    values.into_iter().enumerate().map(label).collect()
}

/// Parses the named ports of labels that [`port_labels`] returned; ignores other labels.
pub fn ports_of_labels<'a>(labels: impl IntoIterator<Item: Into<LabelRef<'a>>>) -> NamedPorts {
    let labels = labels.into_iter().map(Into::into);
    let ours = labels.filter(|label| label.source == PORTS && label.key.starts_with(KEY));
    let ports = ours.flat_map(|label| label.value.split(SEPARATOR)).filter_map(|text| {
        let mut parts = text.rsplitn(3, '.');
        let (port, of, name) = (parts.next()?, parts.next()?, parts.next()?);
        Some((name, port_protocol(of)?, port.parse().ok()?))
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::Labels;

    fn texts(ports: &[(&str, u8, u16)]) -> Vec<String> {
        port_labels(&ports.iter().copied().collect()).iter().map(Label::to_string).collect()
    }

    #[test]
    fn named_ports_are_labels_in_ciliums_form() {
        assert_eq!(texts(&[]), [""; 0]);
        assert_eq!(texts(&[("http", 6, 8080)]), ["gen:io.cilium.k8s.named-ports=http.TCP.8080"]);
        let core_dns = [
            ("readiness-probe", 6, 8181),
            ("dns-tcp", 6, 53),
            ("metrics", 6, 9153),
            ("dns", 17, 53),
            ("liveness-probe", 6, 8080),
        ];
        // As of a pod of a cluster with Cilium 1.20.
        let expected = [
            "gen:io.cilium.k8s.named-ports=dns.UDP.53_dns-tcp.TCP.53_liveness-probe.TCP.8080",
            "gen:io.cilium.k8s.named-ports-1=metrics.TCP.9153_readiness-probe.TCP.8181",
        ];
        assert_eq!(texts(&core_dns), expected);
    }

    #[test]
    fn labels_give_the_ports_back() {
        let ports: Vec<(String, u8, u16)> =
            (0..40).map(|n| (format!("port-{n}"), [6, 17, 132][n % 3], 65_535 - n as u16)).collect();
        let ports: NamedPorts = ports.into_iter().collect();
        let made = port_labels(&ports);
        assert!(made.len() > 10 && made.iter().all(|label| label.value.len() <= MAX_VALUE_BYTES), "{made:?}");
        assert_eq!(ports_of_labels(&made), ports);
        for other in
            ["gen:io.cilium.k8s.named-ports=", "gen:io.cilium.k8s.named-ports=a.b.c_x.TCP", "k8s:app=x"]
        {
            assert!(ports_of_labels(Labels::parse([other]).0.values()).is_empty(), "{other}");
        }
        let foreign = Labels::parse(["k8s:io.cilium.k8s.named-ports=http.TCP.80"]);
        assert!(ports_of_labels(foreign.0.values()).is_empty(), "a pod's own label says nothing");
    }
}

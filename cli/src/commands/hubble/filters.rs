//! Options of `observe` that select flows, in the order of the command line: `--not` reverses the next one.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use datapath_abi::{event, identity, trace};
use hubble_api::flow::FlowFilter;
use serde_json::{Map, Value, json};

/// The option that reverses the next one.
const NOT: &str = "not";

/// The fields of an option.
#[derive(Clone, Copy)]
enum Fields {
    One(&'static str),
    /// Of the source, and in a filter of its own of the destination.
    Both(&'static str, &'static str),
}

struct Flag {
    name: &'static str,
    short: Option<char>,
    fields: Fields,
    /// Parses a value to its form in JSON.
    parse: fn(&str) -> Result<Value, String>,
    help: &'static str,
    /// The value of an option without one.
    missing: Option<&'static str>,
}

const fn flag(
    name: &'static str,
    fields: Fields,
    parse: fn(&str) -> Result<Value, String>,
    help: &'static str,
) -> Flag {
    Flag { name, short: None, fields, parse, help, missing: None }
}

const fn one(
    name: &'static str,
    field: &'static str,
    parse: fn(&str) -> Result<Value, String>,
    help: &'static str,
) -> Flag {
    flag(name, Fields::One(field), parse, help)
}

const fn both(
    name: &'static str,
    source: &'static str,
    destination: &'static str,
    parse: fn(&str) -> Result<Value, String>,
    help: &'static str,
) -> Flag {
    flag(name, Fields::Both(source, destination), parse, help)
}

/// Fields of namespaces, which become prefixes of pods.
const SOURCE_NAMESPACE: &str = "source namespace";
const DESTINATION_NAMESPACE: &str = "destination namespace";

const FLAGS: &[Flag] = &[
    both("pod", "source_pod", "destination_pod", text, "Flows from or to pods: NAMESPACE/PREFIX"),
    one("from-pod", "source_pod", text, "Flows from pods"),
    one("to-pod", "destination_pod", text, "Flows to pods"),
    Flag {
        short: Some('n'),
        ..both(
            "namespace",
            SOURCE_NAMESPACE,
            DESTINATION_NAMESPACE,
            text,
            "Flows from or to pods of a namespace",
        )
    },
    one("from-namespace", SOURCE_NAMESPACE, text, "Flows from pods of a namespace"),
    one("to-namespace", DESTINATION_NAMESPACE, text, "Flows to pods of a namespace"),
    Flag {
        short: Some('A'),
        missing: Some("true"),
        ..both(
            "all-namespaces",
            "source_pod",
            "destination_pod",
            any_pod,
            "Flows from or to pods of any namespace",
        )
    },
    Flag {
        missing: Some("true"),
        ..one("from-all-namespaces", "source_pod", any_pod, "Flows from pods of any namespace")
    },
    Flag {
        missing: Some("true"),
        ..one("to-all-namespaces", "destination_pod", any_pod, "Flows to pods of any namespace")
    },
    both("ip", "source_ip", "destination_ip", text, "Flows from or to an address or a range of addresses"),
    one("from-ip", "source_ip", text, "Flows from addresses"),
    one("to-ip", "destination_ip", text, "Flows to addresses"),
    one("snat-ip", "source_ip_xlated", text, "Flows with a source that was translated to an address"),
    both(
        "fqdn",
        "source_fqdn",
        "destination_fqdn",
        text,
        "Flows from or to addresses with DNS names: *.example.com",
    ),
    one("from-fqdn", "source_fqdn", text, "Flows from addresses with DNS names"),
    one("to-fqdn", "destination_fqdn", text, "Flows to addresses with DNS names"),
    both(
        "service",
        "source_service",
        "destination_service",
        text,
        "Flows from or to services: NAMESPACE/PREFIX",
    ),
    one("from-service", "source_service", text, "Flows from services"),
    one("to-service", "destination_service", text, "Flows to services"),
    both(
        "workload",
        "source_workload",
        "destination_workload",
        workload,
        "Flows from or to pods of a workload: KIND/NAME, or NAME of any kind",
    ),
    one("from-workload", "source_workload", workload, "Flows from pods of a workload"),
    one("to-workload", "destination_workload", workload, "Flows to pods of a workload"),
    Flag {
        short: Some('l'),
        ..both(
            "label",
            "source_label",
            "destination_label",
            text,
            "Flows from or to endpoints with labels: k8s:app=web",
        )
    },
    one("from-label", "source_label", text, "Flows from endpoints with labels"),
    one("to-label", "destination_label", text, "Flows to endpoints with labels"),
    both(
        "identity",
        "source_identity",
        "destination_identity",
        identity_id,
        "Flows from or to an identity: its id or reserved name",
    ),
    one("from-identity", "source_identity", identity_id, "Flows from an identity"),
    one("to-identity", "destination_identity", identity_id, "Flows to an identity"),
    both("port", "source_port", "destination_port", text, "Flows from or to a port"),
    one("from-port", "source_port", text, "Flows from a port"),
    one("to-port", "destination_port", text, "Flows to a port"),
    both(
        "cluster",
        "source_cluster_name",
        "destination_cluster_name",
        text,
        "Flows from or to endpoints of a cluster",
    ),
    one("from-cluster", "source_cluster_name", text, "Flows from endpoints of a cluster"),
    one("to-cluster", "destination_cluster_name", text, "Flows to endpoints of a cluster"),
    one(
        "verdict",
        "verdict",
        name,
        "Flows with a verdict: FORWARDED, DROPPED, ERROR, AUDIT, REDIRECTED, TRACED, TRANSLATED",
    ),
    one("drop-reason-desc", "drop_reason_desc", name, "Flows that are dropped for a reason: POLICY_DENIED"),
    one("traffic-direction", "traffic_direction", name, "Flows of a direction: ingress, egress"),
    Flag {
        short: Some('t'),
        ..one(
            "type",
            "event_type",
            event_type,
            "Flows of events: drop, l7, trace, trace:to-endpoint, trace-sock, policy-verdict, capture",
        )
    },
    one("protocol", "protocol", text, "Flows of a protocol: tcp, udp, icmp, dns, ..."),
    one("tcp-flags", "tcp_flags", tcp_flags, "Flows with all of these flags of TCP: syn,ack"),
    one("ip-version", "ip_version", ip_version, "Flows of a family: none, v4, v6"),
    Flag { short: Some('4'), missing: Some("v4"), ..one("ipv4", "ip_version", ip_version, "Flows of IPv4") },
    Flag { short: Some('6'), missing: Some("v6"), ..one("ipv6", "ip_version", ip_version, "Flows of IPv6") },
    Flag { missing: Some("true"), ..one("reply", "reply", boolean, "Replies") },
    Flag { missing: Some("true"), ..one("not-reply", "reply", opposite, "Flows that are no replies") },
    Flag { missing: Some("true"), ..one("encrypted", "encrypted", boolean, "Encrypted flows") },
    Flag {
        missing: Some("true"),
        ..one("unencrypted", "encrypted", opposite, "Flows that are not encrypted")
    },
    one("http-method", "http_method", text, "Requests with a method of HTTP"),
    one("http-path", "http_path", text, "Requests with a path that a regular expression matches"),
    one("http-url", "http_url", text, "Requests with a URL that a regular expression matches"),
    one("http-status", "http_status_code", text, "Responses with a status: 404, 5+"),
    one("http-header", "http_header", header, "Requests and responses with a header: KEY:VALUE"),
    one("interface", "interface", interface, "Flows at a network interface"),
    one("node-name", "node_name", text, "Flows of nodes: CLUSTER/PATTERN"),
    one("node-label", "node_labels", text, "Flows of nodes with labels"),
    one("trace-id", "trace_id", text, "Flows of a trace"),
    one("ip-trace-id", "ip_trace_id", number, "Flows of packets with an id in an IP option"),
    one("uuid", "uuid", text, "The flow with an id"),
];

fn text(value: &str) -> Result<Value, String> {
    Ok(value.into())
}

fn name(value: &str) -> Result<Value, String> {
    Ok(value.to_ascii_uppercase().into())
}

fn boolean(value: &str) -> Result<Value, String> {
    value.parse::<bool>().map(Value::from).map_err(|_| "is neither true nor false".to_owned())
}

fn opposite(value: &str) -> Result<Value, String> {
    value.parse::<bool>().map(|value| Value::from(!value)).map_err(|_| "is neither true nor false".to_owned())
}

fn number(value: &str) -> Result<Value, String> {
    value.parse::<u64>().map(Value::from).map_err(|_| "is no number".to_owned())
}

fn any_pod(value: &str) -> Result<Value, String> {
    if value == "true" { Ok("/".into()) } else { Err("is not true".to_owned()) }
}

fn identity_id(value: &str) -> Result<Value, String> {
    let by_name = || (0..=u32::from(u8::MAX)).find(|id| identity::label(*id) == Some(value));
    let id = value.parse().ok().or_else(by_name);
    id.map(Value::from).ok_or_else(|| "is neither an id nor a reserved name".to_owned())
}

fn workload(value: &str) -> Result<Value, String> {
    let (kind, name) = value.split_once('/').unwrap_or(("", value));
    Ok(json!({"kind": kind, "name": name}))
}

fn header(value: &str) -> Result<Value, String> {
    let (key, value) = value.split_once(':').ok_or("is not KEY:VALUE")?;
    Ok(json!({"key": key, "value": value}))
}

fn interface(value: &str) -> Result<Value, String> {
    Ok(json!({"name": value}))
}

fn ip_version(value: &str) -> Result<Value, String> {
    match value {
        "none" => Ok("IP_NOT_USED".into()),
        "4" | "v4" | "ipv4" | "IPv4" => Ok("IPv4".into()),
        "6" | "v6" | "ipv6" | "IPv6" => Ok("IPv6".into()),
        _ => Err("is none of none, v4, v6".to_owned()),
    }
}

fn tcp_flags(value: &str) -> Result<Value, String> {
    Ok(value
        .split(',')
        .map(|flag| (flag.to_ascii_uppercase(), Value::Bool(true)))
        .collect::<Map<_, _>>()
        .into())
}

fn event_type(value: &str) -> Result<Value, String> {
    let (kind, sub_type) = value.split_once(':').map_or((value, None), |(kind, rest)| (kind, Some(rest)));
    let number = match kind {
        "drop" => event::DROP,
        "l7" => monitor_events::ACCESS_LOG,
        "trace" => event::TRACE,
        "trace-sock" => event::TRACE_SOCK,
        "policy-verdict" => event::POLICY_VERDICT,
        "capture" => event::DEBUG_CAPTURE,
        _ => kind.parse().map_err(|_| "is none of drop, l7, trace, trace-sock, policy-verdict, capture")?,
    };
    let Some(sub_type) = sub_type else { return Ok(json!({"type": number})) };
    let point = |wanted: &str| (0..=u8::MAX).find(|point| trace::label(*point) == Some(wanted));
    let point = sub_type.parse().ok().or_else(|| point(sub_type).filter(|_| number == event::TRACE));
    let point = point.ok_or_else(|| format!("has an unknown subtype {sub_type}"))?;
    Ok(json!({"type": number, "match_sub_type": true, "sub_type": point}))
}

/// Filters that a flow has to pass, and those that it must not pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Filters {
    pub(super) allow: Vec<FlowFilter>,
    pub(super) deny: Vec<FlowFilter>,
    /// The filters as JSON.
    raw: [Vec<String>; 2],
}

impl Filters {
    /// Returns the filters as Cilium's client shows them.
    pub(super) fn raw(&self) -> String {
        let mut text = String::new();
        for (title, filters) in ["allowlist", "denylist"].into_iter().zip(&self.raw) {
            if !filters.is_empty() {
                text += &format!("{title}:\n");
                text.extend(filters.iter().map(|filter| format!("    - '{}'\n", filter.replace('\'', "''"))));
            }
        }
        text
    }
}

/// The two filters of one list: for options on either side, of the source and of the destination.
#[derive(Default)]
struct Sides {
    source: Map<String, Value>,
    destination: Map<String, Value>,
    flags: Vec<&'static str>,
}

impl Sides {
    fn add(&mut self, flag: &Flag, value: &Value) -> Result<(), String> {
        let kind = |name: &'static str| name.trim_start_matches("from-").trim_start_matches("to-");
        let is_both = |name: &str| !name.starts_with("from-") && !name.starts_with("to-");
        let conflicts =
            |other: &&&'static str| kind(other) == kind(flag.name) && is_both(other) != is_both(flag.name);
        if let Some(other) = self.flags.iter().find(conflicts) {
            return Err(format!("filters --{} and --{other} cannot be combined", flag.name));
        }
        self.flags.push(flag.name);
        let mut push = |side: usize, field: &str| {
            let map = if side == 0 { &mut self.source } else { &mut self.destination };
            if let Value::Array(values) = map.entry(field).or_insert_with(|| json!([])) {
                values.push(value.clone());
            }
        };
        match flag.fields {
            Fields::One(field) => [0, 1].into_iter().for_each(|side| push(side, field)),
            Fields::Both(source, destination) => {
                push(0, source);
                push(1, destination);
            }
        }
        Ok(())
    }

    /// Returns the filters: none, one, or one for each side.
    fn build(self) -> Result<Vec<Value>, String> {
        let mut filters = Vec::new();
        for mut filter in [self.source, self.destination] {
            for (namespaces, pods) in
                [(SOURCE_NAMESPACE, "source_pod"), (DESTINATION_NAMESPACE, "destination_pod")]
            {
                let Some(Value::Array(namespaces)) = filter.remove(namespaces) else { continue };
                let prefixes = match filter.remove(pods) {
                    Some(Value::Array(pods)) => qualified(&pods, &namespaces)?,
                    _ => namespaces.iter().filter_map(Value::as_str).map(|name| format!("{name}/")).collect(),
                };
                filter.insert(pods.to_owned(), prefixes.into());
            }
            let filter = Value::Object(filter);
            if filter != json!({}) && !filters.contains(&filter) {
                filters.push(filter);
            }
        }
        Ok(filters)
    }
}

/// Returns pods with each of the namespaces; one that has another namespace already is an error.
fn qualified(pods: &[Value], namespaces: &[Value]) -> Result<Vec<String>, String> {
    let namespaces: Vec<&str> = namespaces.iter().filter_map(Value::as_str).collect();
    let mut prefixes = Vec::new();
    for pod in pods.iter().filter_map(Value::as_str) {
        match pod.split_once('/') {
            None => prefixes.extend(namespaces.iter().map(|namespace| format!("{namespace}/{pod}"))),
            Some((namespace, _)) if namespaces.contains(&namespace) => prefixes.push(pod.to_owned()),
            Some(_) => return Err(format!("namespace conflict: {namespaces:?} does not contain {pod:?}")),
        }
    }
    Ok(prefixes)
}

impl Args for Filters {
    fn augment_args(command: Command) -> Command {
        let option = |name: &'static str, help: &'static str, missing: Option<&'static str>| {
            let arg = Arg::new(name).long(name).help(help).action(ArgAction::Append).value_name("FILTER");
            match missing {
                Some(missing) => arg.num_args(0..=1).require_equals(true).default_missing_value(missing),
                None => arg,
            }
        };
        let not = option(NOT, "Reverses the next filter: flows that do not pass it", Some("true"));
        let lists = [
            option("allowlist", "A filter as JSON that flows pass", None),
            option("denylist", "A filter as JSON that flows do not pass", None),
            option(
                "cel-expression",
                "Flows of which an expression of CEL is true: _flow.verdict == Verdict.DROPPED",
                None,
            ),
        ];
        let flags = FLAGS.iter().map(|flag| {
            let arg = option(flag.name, flag.help, flag.missing);
            flag.short.map_or(arg.clone(), |short| arg.short(short))
        });
        command.args(flags).arg(not).args(lists)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Filters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let values = |name: &str| -> Vec<(usize, String)> {
            let values = matches.get_many::<String>(name).into_iter().flatten().cloned();
            matches.indices_of(name).into_iter().flatten().zip(values).collect()
        };
        let mut words: Vec<(usize, Option<&Flag>, String)> =
            values(NOT).into_iter().map(|(at, value)| (at, None, value)).collect();
        for flag in FLAGS {
            words.extend(values(flag.name).into_iter().map(|(at, value)| (at, Some(flag), value)));
        }
        words.sort_by_key(|(at, ..)| *at);
        let invalid = |flag: &str, value: &str, why: &str| {
            Error::raw(ErrorKind::InvalidValue, format!("invalid argument {value:?} for --{flag}: {why}\n"))
        };
        let mut sides = [Sides::default(), Sides::default()];
        let mut is_reversed = false;
        for (_, flag, value) in words {
            let Some(flag) = flag else {
                is_reversed = value == "true";
                continue;
            };
            let [allow, deny] = &mut sides;
            let side = if std::mem::take(&mut is_reversed) { deny } else { allow };
            let added = (flag.parse)(&value).and_then(|parsed| side.add(flag, &parsed));
            added.map_err(|why| invalid(flag.name, &value, &why))?;
        }
        let mut filters = Self::default();
        let [allow, deny] = sides.map(Sides::build);
        let expressions: Vec<String> = values("cel-expression").into_iter().map(|(_, text)| text).collect();
        let lists = [("allowlist", allow), ("denylist", deny)];
        for (n, (list, built)) in lists.into_iter().enumerate() {
            let mut built = built.map_err(|why| invalid(list, "", &why))?;
            if n == 0 && !expressions.is_empty() {
                if built.is_empty() {
                    built.push(json!({}));
                }
                let experimental = json!({"cel_expression": expressions});
                built.iter_mut().for_each(|filter| filter["experimental"] = experimental.clone());
            }
            for (_, text) in values(list) {
                built
                    .push(serde_json::from_str(&text).map_err(|why| invalid(list, &text, &why.to_string()))?);
            }
            for filter in built {
                let parsed = hubble_api::filter_from_json(&filter);
                let parsed = parsed.map_err(|why| invalid(list, &filter.to_string(), &why.to_string()))?;
                if n == 0 {
                    filters.allow.push(parsed)
                } else {
                    filters.deny.push(parsed)
                }
                filters.raw[n].push(filter.to_string());
            }
        }
        Ok(filters)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        filters: Filters,
    }

    fn raw(line: &str) -> Result<String, String> {
        let words = ["x"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.filters.raw()).map_err(|error| error.to_string())
    }

    #[test]
    fn filters_are_those_of_cilium_by_the_order_of_options() {
        for (line, expected) in [
            (
                "--from-pod client --not --protocol udp --to-port 80",
                r#"allowlist:
    - '{"destination_port":["80"],"source_pod":["client"]}'
denylist:
    - '{"protocol":["udp"]}'
"#,
            ),
            (
                "-A --reply",
                r#"allowlist:
    - '{"reply":[true],"source_pod":["/"]}'
    - '{"destination_pod":["/"],"reply":[true]}'
"#,
            ),
            (
                "--from-pod a --from-namespace b -4 -t trace:to-endpoint --tcp-flags syn,ack",
                r#"allowlist:
    - '{"event_type":[{"match_sub_type":true,"sub_type":0,"type":4}],"ip_version":["IPv4"],"source_pod":["b/a"],"tcp_flags":[{"ACK":true,"SYN":true}]}'
"#,
            ),
            (
                "--not --pod a --unencrypted",
                r#"allowlist:
    - '{"encrypted":[false]}'
denylist:
    - '{"source_pod":["a"]}'
    - '{"destination_pod":["a"]}'
"#,
            ),
            (
                "--identity world --http-header a:b --interface eth0 --verdict dropped",
                r#"allowlist:
    - '{"http_header":[{"key":"a","value":"b"}],"interface":[{"name":"eth0"}],"source_identity":[2],"verdict":["DROPPED"]}'
    - '{"destination_identity":[2],"http_header":[{"key":"a","value":"b"}],"interface":[{"name":"eth0"}],"verdict":["DROPPED"]}'
"#,
            ),
        ] {
            assert_eq!(raw(line).as_deref(), Ok(expected), "{line}");
        }
        for (line, expected) in [
            ("--pod a --from-pod b", "--from-pod and --pod cannot be combined"),
            ("-n default --to-namespace x", "cannot be combined"),
            ("--pod x/a --namespace y", "namespace conflict"),
            ("--type nosuch", "is none of drop"),
            ("--verdict nosuch", "NOSUCH"),
        ] {
            assert!(raw(line).unwrap_err().contains(expected), "{line}: {:?}", raw(line));
        }
    }
}

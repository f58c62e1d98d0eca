//! Labels of a metric that name source and destination of a flow, as its options choose.

use hubble_api::flow::{Endpoint, Flow, TrafficDirection};

/// The keys of labels that name an application, by which the first label of a pod with one of them counts.
const APP_KEYS: [&str; 3] = ["k8s:app.kubernetes.io/name=", "k8s:k8s-app=", "k8s:app="];

/// An identifier of one side of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identifier {
    Identity,
    Namespace,
    Pod,
    PodName,
    Dns,
    Ip,
    ReservedIdentity,
    Workload,
    WorkloadName,
    App,
}

impl Identifier {
    const ALL: [(&'static str, Identifier); 10] = [
        ("identity", Identifier::Identity),
        ("namespace", Identifier::Namespace),
        ("pod", Identifier::Pod),
        ("pod-name", Identifier::PodName),
        ("dns", Identifier::Dns),
        ("ip", Identifier::Ip),
        ("reserved-identity", Identifier::ReservedIdentity),
        ("workload", Identifier::Workload),
        ("workload-name", Identifier::WorkloadName),
        ("app", Identifier::App),
    ];

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, identifier)| *identifier)
    }

    /// Whether a series with this identifier ends with its pod.
    fn is_of_pod(self) -> bool {
        matches!(self, Self::Pod | Self::PodName | Self::Ip)
    }
}

/// A label of the option `labelsContext`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Side(bool, Field),
    Direction,
}

/// A field of one side, by the name of its label without the side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Ip,
    Pod,
    Namespace,
    Workload,
    WorkloadKind,
    App,
}

/// The labels of `labelsContext`, in the order in which a metric has them.
const LABELS: [(&str, Label); 13] = [
    ("source_ip", Label::Side(true, Field::Ip)),
    ("source_pod", Label::Side(true, Field::Pod)),
    ("source_namespace", Label::Side(true, Field::Namespace)),
    ("source_workload", Label::Side(true, Field::Workload)),
    ("source_workload_kind", Label::Side(true, Field::WorkloadKind)),
    ("source_app", Label::Side(true, Field::App)),
    ("destination_ip", Label::Side(false, Field::Ip)),
    ("destination_pod", Label::Side(false, Field::Pod)),
    ("destination_namespace", Label::Side(false, Field::Namespace)),
    ("destination_workload", Label::Side(false, Field::Workload)),
    ("destination_workload_kind", Label::Side(false, Field::WorkloadKind)),
    ("destination_app", Label::Side(false, Field::App)),
    ("traffic_direction", Label::Direction),
];

/// Identifiers of one side: the first one with a value counts. With others for flows of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Side {
    any: Vec<Identifier>,
    egress: Vec<Identifier>,
    ingress: Vec<Identifier>,
}

impl Side {
    fn is_set(&self) -> bool {
        !(self.any.is_empty() && self.egress.is_empty() && self.ingress.is_empty())
    }

    fn identifiers(&self, direction: TrafficDirection) -> &[Identifier] {
        match direction {
            TrafficDirection::Egress if !self.egress.is_empty() => &self.egress,
            TrafficDirection::Ingress if !self.ingress.is_empty() => &self.ingress,
            _ => &self.any,
        }
    }

    fn all(&self) -> impl Iterator<Item = Identifier> {
        self.any.iter().chain(&self.egress).chain(&self.ingress).copied()
    }
}

/// The labels that options of a metric add to its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Context {
    labels: Vec<(&'static str, Label)>,
    source: Side,
    destination: Side,
}

/// An option of a context that is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {value:?} is not one of {known}")]
pub struct BadContext {
    /// The option.
    pub(crate) option: String,
    /// Its value.
    pub(crate) value: String,
    /// The valid values.
    pub(crate) known: String,
}

impl Context {
    /// Applies an option; names of options count in any case. Returns false if it is no option of contexts.
    pub(crate) fn set(&mut self, option: &str, values: &[&str]) -> Result<bool, BadContext> {
        let identifiers = || {
            let parse = |text: &&str| {
                Identifier::parse(text).ok_or_else(|| BadContext {
                    option: option.to_owned(),
                    value: (*text).to_owned(),
                    known: Identifier::ALL.map(|(name, _)| name).join(", "),
                })
            };
            values.iter().map(parse).collect::<Result<Vec<_>, _>>()
        };
        match option.to_ascii_lowercase().as_str() {
            "sourcecontext" => self.source.any = identifiers()?,
            "sourceegresscontext" => self.source.egress = identifiers()?,
            "sourceingresscontext" => self.source.ingress = identifiers()?,
            "destinationcontext" => self.destination.any = identifiers()?,
            "destinationegresscontext" => self.destination.egress = identifiers()?,
            "destinationingresscontext" => self.destination.ingress = identifiers()?,
            "labelscontext" => {
                if let Some(unknown) =
                    values.iter().find(|value| LABELS.iter().all(|(name, _)| name != *value))
                {
                    return Err(BadContext {
                        option: option.to_owned(),
                        value: (*unknown).to_owned(),
                        known: LABELS.map(|(name, _)| name).join(", "),
                    });
                }
                self.labels = LABELS.into_iter().filter(|(name, _)| values.contains(name)).collect();
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the names of the labels.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let sides = [("source", &self.source), ("destination", &self.destination)];
        let sides = sides.into_iter().filter(|(_, side)| side.is_set()).map(|(name, _)| name);
        self.labels.iter().map(|(name, _)| *name).chain(sides)
    }

    /// Calls `add` with the values of the labels. `swapped`: of a response, whose source is the server.
    pub(crate) fn values(&self, flow: &Flow, swapped: bool, mut add: impl FnMut(&str)) {
        for (_, label) in &self.labels {
            match label {
                Label::Side(is_source, field) => {
                    add(&field.value(flow, *is_source != swapped));
                }
                Label::Direction => add(match flow.traffic_direction() {
                    TrafficDirection::Ingress => "ingress",
                    TrafficDirection::Egress => "egress",
                    _ => "unknown",
                }),
            }
        }
        for (is_source, side) in [(true, &self.source), (false, &self.destination)] {
            if side.is_set() {
                let identifiers = side.identifiers(flow.traffic_direction());
                let values =
                    identifiers.iter().map(|identifier| identifier.value(flow, is_source != swapped));
                add(&values.into_iter().find(|value| !value.is_empty()).unwrap_or_default());
            }
        }
    }

    /// Returns the pods of a flow with which its series ends, each as `namespace/name`.
    pub(crate) fn pods(&self, flow: &Flow, swapped: bool) -> Vec<(String, String)> {
        let side = |is_source: bool| {
            let of_label = |(_, label): &(&str, Label)| matches!(label, Label::Side(side, Field::Pod | Field::Ip) if *side == is_source);
            let context = if is_source { &self.source } else { &self.destination };
            let is_of_pod = context.all().any(Identifier::is_of_pod) || self.labels.iter().any(of_label);
            let endpoint = endpoint(flow, is_source != swapped).filter(|_| is_of_pod)?;
            let (namespace, pod) = (&endpoint.namespace, &endpoint.pod_name);
            (!pod.is_empty()).then(|| (namespace.clone(), pod.clone()))
        };
        [side(true), side(false)].into_iter().flatten().collect()
    }
}

fn endpoint(flow: &Flow, is_source: bool) -> Option<&Endpoint> {
    if is_source { flow.source.as_ref() } else { flow.destination.as_ref() }
}

fn address(flow: &Flow, is_source: bool) -> &str {
    let ip = flow.ip.as_ref();
    ip.map(|ip| if is_source { &*ip.source } else { &*ip.destination }).unwrap_or_default()
}

impl Field {
    fn value(self, flow: &Flow, is_source: bool) -> String {
        let endpoint = endpoint(flow, is_source);
        let workload = endpoint.and_then(|endpoint| endpoint.workloads.first());
        let text = match self {
            Self::Ip => return address(flow, is_source).to_owned(),
            Self::Pod => endpoint.map(|endpoint| &endpoint.pod_name),
            Self::Namespace => endpoint.map(|endpoint| &endpoint.namespace),
            Self::Workload => workload.map(|workload| &workload.name),
            Self::WorkloadKind => workload.map(|workload| &workload.kind),
            Self::App => return app(endpoint),
        };
        text.cloned().unwrap_or_default()
    }
}

impl Identifier {
    fn value(self, flow: &Flow, is_source: bool) -> String {
        let names = if is_source { &flow.source_names } else { &flow.destination_names };
        let Some(endpoint) = endpoint(flow, is_source) else {
            return match self {
                Self::Ip => address(flow, is_source).to_owned(),
                Self::Dns => names.join(","),
                _ => String::new(),
            };
        };
        let workload = endpoint.workloads.first().map(|workload| &*workload.name).unwrap_or_default();
        match self {
            Self::Identity => endpoint.labels.join(","),
            Self::Namespace => endpoint.namespace.clone(),
            Self::Pod => qualified(&endpoint.namespace, &endpoint.pod_name),
            Self::PodName => endpoint.pod_name.clone(),
            Self::Dns => names.join(","),
            Self::Ip => address(flow, is_source).to_owned(),
            Self::ReservedIdentity => reserved(&endpoint.labels),
            Self::Workload => qualified(&endpoint.namespace, workload),
            Self::WorkloadName => workload.to_owned(),
            Self::App => app(Some(endpoint)),
        }
    }
}

fn qualified(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        (_, "") => String::new(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

fn reserved(labels: &[String]) -> String {
    const API_SERVER: &str = "reserved:kube-apiserver";
    let found = labels.iter().find(|label| *label == API_SERVER);
    let found = found.or_else(|| labels.iter().find(|label| label.starts_with("reserved:")));
    found.cloned().unwrap_or_default()
}

fn app(endpoint: Option<&Endpoint>) -> String {
    let labels = endpoint.map_or(&[][..], |endpoint| &endpoint.labels);
    let value = |label: &String| APP_KEYS.iter().find_map(|key| label.strip_prefix(key)).map(str::to_owned);
    labels.iter().find_map(value).unwrap_or_default()
}

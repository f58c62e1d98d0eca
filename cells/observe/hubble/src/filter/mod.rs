//! Filters of requests: which flows they select.
//!
//! `expressions` has conditions in CEL, `l7` those on contents of requests, `text` has addresses, pods, ports and patterns of nodes and DNS names, `selector` requirements on labels.

mod expressions;
mod l7;
mod selector;
mod text;

use std::fmt;

use hubble_api::flow::{Endpoint, Flow, FlowFilter, Verdict, Workload};

/// A condition on a flow.
type Check = Box<dyn Fn(&Flow) -> bool + Send + Sync>;

/// An invalid filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid filter {field}: {problem}")]
#[non_exhaustive]
pub struct BadFilter {
    /// The field's name.
    pub field: &'static str,
    /// Why its value is invalid.
    pub problem: String,
}

/// The filters of a request: a flow passes if one of the first list matches, or it is empty, and none of the second.
#[derive(Debug, Default)]
pub struct Filters {
    allow: Vec<Filter>,
    deny: Vec<Filter>,
}

/// A filter: all of its conditions must hold.
#[derive(Default)]
struct Filter(Vec<Check>);

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({} conditions)", self.0.len())
    }
}

impl Filters {
    /// Compiles the filters of a request.
    ///
    /// # Errors
    /// A value is invalid.
    pub fn new(allow: &[FlowFilter], deny: &[FlowFilter]) -> Result<Self, BadFilter> {
        let compile = |filters: &[FlowFilter]| filters.iter().map(Filter::new).collect::<Result<_, _>>();
        Ok(Self { allow: compile(allow)?, deny: compile(deny)? })
    }

    /// Whether a flow passes. Linear in the number of conditions.
    pub fn select(&self, flow: &Flow) -> bool {
        (self.allow.is_empty() || self.allow.iter().any(|filter| filter.matches(flow)))
            && !self.deny.iter().any(|filter| filter.matches(flow))
    }
}

impl Filter {
    fn matches(&self, flow: &Flow) -> bool {
        self.0.iter().all(|check| check(flow))
    }

    fn new(filter: &FlowFilter) -> Result<Self, BadFilter> {
        let mut checks = Self::default();
        checks.sides(filter)?;
        checks.events(filter);
        checks.contents(filter)?;
        checks.any(&filter.uuid, Ok, |uuid, flow| flow.uuid == *uuid)?;
        let xlated = |address: String| text::address("source_ip_xlated", &address);
        checks.any(&filter.source_ip_xlated, xlated, |address, flow| {
            flow.ip.as_ref().is_some_and(|ip| address.matches(&ip.source_xlated))
        })?;
        checks.any(
            &filter.protocol,
            |name| text::protocol(&name),
            |protocol, flow| protocol.matches(flow),
        )?;
        checks.any(
            &filter.source_port,
            |port| text::port("source_port", &port),
            |port, flow| text::ports(flow).is_some_and(|(source, _)| source == *port),
        )?;
        checks.any(
            &filter.destination_port,
            |port| text::port("destination_port", &port),
            |port, flow| text::ports(flow).is_some_and(|(_, destination)| destination == *port),
        )?;
        checks.any(
            &filter.node_name,
            |name| text::node(&name),
            |pattern, flow| pattern.matches(&flow.node_name),
        )?;
        checks.any(
            &filter.node_labels,
            |text| selector::parse("node_labels", &text),
            |selector, flow| selector.matches(&flow.node_labels),
        )?;
        // The dearest condition is the last one.
        if let Some(expressions) = expressions::compile(filter)? {
            checks.0.push(Box::new(move |flow| expressions.select(flow)));
        }
        Ok(checks)
    }

    /// Adds the conditions on endpoints, addresses and services of both sides.
    fn sides(&mut self, filter: &FlowFilter) -> Result<(), BadFilter> {
        let sides = [
            Side {
                endpoint: |flow| flow.source.as_ref(),
                address: |flow| flow.ip.as_ref().map(|ip| &*ip.source),
                service: |flow| flow.source_service.as_ref(),
                dns_names: |flow| &flow.source_names,
                names: [
                    "source_ip",
                    "source_pod",
                    "source_label",
                    "source_service",
                    "source_cluster_name",
                    "source_fqdn",
                ],
                values: [
                    &filter.source_ip,
                    &filter.source_pod,
                    &filter.source_label,
                    &filter.source_service,
                    &filter.source_cluster_name,
                    &filter.source_fqdn,
                ],
                identities: &filter.source_identity,
                workloads: &filter.source_workload,
            },
            Side {
                endpoint: |flow| flow.destination.as_ref(),
                address: |flow| flow.ip.as_ref().map(|ip| &*ip.destination),
                service: |flow| flow.destination_service.as_ref(),
                dns_names: |flow| &flow.destination_names,
                names: [
                    "destination_ip",
                    "destination_pod",
                    "destination_label",
                    "destination_service",
                    "destination_cluster_name",
                    "destination_fqdn",
                ],
                values: [
                    &filter.destination_ip,
                    &filter.destination_pod,
                    &filter.destination_label,
                    &filter.destination_service,
                    &filter.destination_cluster_name,
                    &filter.destination_fqdn,
                ],
                identities: &filter.destination_identity,
                workloads: &filter.destination_workload,
            },
        ];
        sides.into_iter().try_for_each(|side| self.side(side))
    }

    fn side(&mut self, side: Side<'_>) -> Result<(), BadFilter> {
        let Side { endpoint, address, service, dns_names, names, values, identities, workloads } = side;
        self.any(
            values[0],
            |text| text::address(names[0], &text),
            move |range, flow| address(flow).is_some_and(|address| range.matches(address)),
        )?;
        self.any(
            values[1],
            |text| text::name(names[1], &text),
            move |name, flow| endpoint(flow).is_some_and(|pod| name.matches(&pod.namespace, &pod.pod_name)),
        )?;
        self.any(
            values[2],
            |text| selector::parse(names[2], &text),
            move |selector, flow| {
                selector.matches(endpoint(flow).map_or(&[][..], |endpoint| &endpoint.labels))
            },
        )?;
        self.any(
            values[3],
            |text| text::name(names[3], &text),
            move |name, flow| {
                service(flow).is_some_and(|service| name.matches(&service.namespace, &service.name))
            },
        )?;
        self.any(
            values[4],
            |name| match name.is_empty() {
                true => {
                    Err(BadFilter { field: names[4], problem: "the name of a cluster is empty".to_owned() })
                }
                false => Ok(name),
            },
            move |name, flow| endpoint(flow).is_some_and(|endpoint| endpoint.cluster_name == *name),
        )?;
        self.any(
            values[5],
            |text| text::fqdn(names[5], &text),
            move |pattern, flow| dns_names(flow).iter().any(|name| pattern.is_match(name)),
        )?;
        self.one_of(workloads, move |expected, flow| {
            let of_side = endpoint(flow).map_or(&[][..], |endpoint| &endpoint.workloads);
            of_side.iter().any(|workload| {
                (expected.name.is_empty() || expected.name == workload.name)
                    && (expected.kind.is_empty() || expected.kind == workload.kind)
            })
        });
        self.any(identities, Ok, move |identity, flow| {
            endpoint(flow).is_some_and(|endpoint| endpoint.identity == *identity)
        })
    }

    /// Adds the conditions that compare numbers, which are all valid.
    fn events(&mut self, filter: &FlowFilter) {
        self.one_of(&filter.traffic_direction, |value, flow| flow.traffic_direction == *value);
        self.one_of(&filter.verdict, |value, flow| flow.verdict == *value);
        self.one_of(&filter.ip_version, |value, flow| {
            flow.ip.as_ref().map_or(0, |ip| ip.ip_version) == *value
        });
        self.one_of(&filter.drop_reason_desc, |value, flow| {
            flow.verdict() == Verdict::Dropped && flow.drop_reason_desc == *value
        });
        self.one_of(&filter.interface, |value, flow| {
            flow.interface.as_ref().is_some_and(|interface| {
                (value.index == 0 || value.index == interface.index)
                    && (value.name.is_empty() || value.name == interface.name)
            })
        });
        self.one_of(&filter.event_type, |value, flow| {
            flow.event_type.as_ref().is_some_and(|event| {
                (value.r#type == 0 || value.r#type == event.r#type)
                    && (!value.match_sub_type || value.sub_type == event.sub_type)
            })
        });
        self.one_of(&filter.tcp_flags, |value, flow| text::has_flags(flow, value));
        // Only drops have no direction of the connection: they count as no reply.
        self.one_of(&filter.reply, |value, flow| match flow.is_reply {
            Some(is_reply) => is_reply == *value,
            None => flow.verdict() == Verdict::Dropped && !value,
        });
        self.one_of(&filter.encrypted, |value, flow| {
            flow.ip.as_ref().is_some_and(|ip| ip.encrypted) == *value
        });
        self.one_of(&filter.ip_trace_id, |value, flow| {
            flow.ip_trace_id.as_ref().is_some_and(|id| id.trace_id == *value)
        });
    }

    /// Adds the condition that one of these values matches, if there are any.
    fn one_of<T: Clone + Send + Sync + 'static>(
        &mut self,
        values: &[T],
        matches: impl Fn(&T, &Flow) -> bool + Send + Sync + 'static,
    ) {
        if !values.is_empty() {
            let values = values.to_vec();
            self.0.push(Box::new(move |flow| values.iter().any(|value| matches(value, flow))));
        }
    }

    /// Adds the same for values that are compiled first.
    fn any<T: Clone, C: Clone + Send + Sync + 'static>(
        &mut self,
        values: &[T],
        compile: impl Fn(T) -> Result<C, BadFilter>,
        matches: impl Fn(&C, &Flow) -> bool + Send + Sync + 'static,
    ) -> Result<(), BadFilter> {
        let compiled = values.iter().cloned().map(compile).collect::<Result<Vec<C>, _>>()?;
        self.one_of(&compiled, matches);
        Ok(())
    }
}

/// One side of flows, with the values of its fields in a filter.
struct Side<'a> {
    endpoint: fn(&Flow) -> Option<&Endpoint>,
    address: fn(&Flow) -> Option<&str>,
    service: fn(&Flow) -> Option<&hubble_api::flow::Service>,
    dns_names: fn(&Flow) -> &[String],
    /// Fields for addresses, pods, labels, services, clusters and DNS names.
    names: [&'static str; 6],
    values: [&'a Vec<String>; 6],
    identities: &'a [u32],
    workloads: &'a [Workload],
}

#[cfg(test)]
mod tests;

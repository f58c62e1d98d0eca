//! Statuses of services and pools.

use std::net::IpAddr;

use k8s_types::SmolStr;
use k8s_types::cilium::Condition;
use k8s_types::core::LoadBalancerIngress;
use serde_json::{Value, json};

use crate::allocator::{Failure, PoolCounts};
use crate::objects::{IpPool, LbService};

/// The condition of services.
const SATISFIED: &str = "cilium.io/IPAMRequestSatisfied";

/// Returns the addresses in the status of a service.
pub(crate) fn addresses(service: &LbService) -> Vec<IpAddr> {
    let ingress = &service.status.load_balancer.ingress;
    ingress.iter().filter_map(|ingress| ingress.ip.parse().ok()).collect()
}

/// Returns the status of a service with these addresses, if it is another one. Entries of the addresses that it has already and of
/// names stay as they are.
pub(crate) fn with_addresses(service: &LbService, ips: &[IpAddr]) -> Option<Value> {
    let status = service_status(service, ips, service.status.conditions.clone());
    (addresses(service) != ips).then_some(status)
}

/// Returns the status of a service with the outcome of its request, if it is another one.
pub(crate) fn of_service(
    service: &LbService,
    ips: &[IpAddr],
    failure: Option<&Failure>,
    now: &str,
) -> Option<Value> {
    let (is_satisfied, reason, message) = match failure {
        None => ("True", "satisfied", String::new()),
        Some(failure) => ("False", failure.reason(), failure.message()),
    };
    let mut conditions = service.status.conditions.clone();
    let generation = service.metadata.generation;
    let has_changed =
        set_condition(&mut conditions, generation, (SATISFIED, is_satisfied, reason, &message), now);
    // In the order of the status, so that nothing is written if nothing has changed.
    let present = addresses(service);
    let kept = present.iter().filter(|ip| ips.contains(ip)).copied();
    let ips: Vec<IpAddr> = kept.chain(ips.iter().filter(|ip| !present.contains(ip)).copied()).collect();
    (has_changed || present != ips).then(|| service_status(service, &ips, conditions))
}

/// Returns the status of a service that belongs to others from now, without the addresses that it had and the condition; none if
/// it has neither.
pub(crate) fn of_former_service(service: &LbService, had: &[IpAddr]) -> Option<Value> {
    let mut conditions = service.status.conditions.clone();
    conditions.retain(|condition| condition.r#type != SATISFIED);
    let present = addresses(service);
    let left: Vec<IpAddr> = present.iter().filter(|ip| !had.contains(ip)).copied().collect();
    let is_clean = conditions.len() == service.status.conditions.len() && left == present;
    (!is_clean).then(|| service_status(service, &left, conditions))
}

/// Returns the status of a pool, if it is another one.
pub(crate) fn of_pool(pool: &IpPool, counts: &PoolCounts, now: &str) -> Option<Value> {
    let mut conditions = pool.0.status.conditions.clone();
    let generation = pool.0.metadata.generation;
    let [total, available, used] =
        [counts.total, counts.total.saturating_sub(counts.used), counts.used].map(|count| count.to_string());
    let (conflict, reason) = match counts.conflict.is_empty() {
        true => ("False", "resolved"),
        false => ("True", "cidr_overlap"),
    };
    let desired = [
        ("cilium.io/PoolConflict", conflict, reason, counts.conflict.as_str()),
        ("cilium.io/IPsTotal", "Unknown", "noreason", &total),
        ("cilium.io/IPsAvailable", "Unknown", "noreason", &available),
        ("cilium.io/IPsUsed", "Unknown", "noreason", &used),
    ];
    let mut has_changed = false;
    for condition in desired {
        has_changed |= set_condition(&mut conditions, generation, condition, now);
    }
    has_changed.then(|| json!({"conditions": conditions}))
}

/// Sets type, status, reason and message of a condition. Returns whether that has changed it.
fn set_condition(
    conditions: &mut Vec<Condition>,
    generation: i64,
    (r#type, status, reason, message): (&str, &str, &str, &str),
    now: &str,
) -> bool {
    let now = now.parse().ok();
    let [kind, status, reason, message] = [r#type, status, reason, message].map(SmolStr::new);
    let mut desired = Condition {
        r#type: kind,
        status,
        observed_generation: generation,
        last_transition_time: now,
        reason,
        message,
    };
    let Some(known) = conditions.iter_mut().find(|known| known.r#type == r#type) else {
        conditions.push(desired);
        return true;
    };
    if known.status == desired.status {
        desired.last_transition_time = known.last_transition_time.or(now);
    }
    let has_changed = *known != desired;
    *known = desired;
    has_changed
}

fn service_status(service: &LbService, ips: &[IpAddr], conditions: Vec<Condition>) -> Value {
    let present = &service.status.load_balancer.ingress;
    let named = present.iter().filter(|ingress| ingress.ip.is_empty());
    let mut ingress: Vec<LoadBalancerIngress> = named.cloned().collect();
    for ip in ips {
        let known = present.iter().find(|known| known.ip.parse() == Ok(*ip));
        let new = || LoadBalancerIngress { ip: ip.to_string().into(), ..LoadBalancerIngress::default() };
        ingress.push(known.cloned().unwrap_or_else(new));
    }
    let mut status = json!({"loadBalancer": {}});
    if !ingress.is_empty() {
        status["loadBalancer"]["ingress"] = json!(ingress);
    }
    if !conditions.is_empty() {
        status["conditions"] = json!(conditions);
    }
    status
}

//! The lines that `hubble observe agent-events` and `debug-events` print.

use std::fmt::Write as _;

use crate::compact::stamp;
use crate::flow::agent_event::Notification;
use crate::flow::{AgentEvent, Endpoint};
use crate::observer::{GetAgentEventsResponse, GetDebugEventsResponse};

/// The text of a field without a value.
const ABSENT: &str = "N/A";

/// Returns a notification of the agent as a line for people, without control characters. Times are in UTC.
#[must_use]
pub fn agent_event_to_compact(response: &GetAgentEventsResponse) -> String {
    let event = response.agent_event.clone().unwrap_or_default();
    let line =
        format!("{}: {} ({})", stamp(response.time.as_ref()), event.r#type().as_str_name(), details(&event));
    printable(&line)
}

/// Returns a debug message as a line for people, without control characters. Times are in UTC.
#[must_use]
pub fn debug_event_to_compact(response: &GetDebugEventsResponse) -> String {
    let event = response.debug_event.clone().unwrap_or_default();
    let absent = || ABSENT.to_owned();
    let line = format!(
        "{}: {} {} MARK: {} CPU: {} ({})",
        stamp(response.time.as_ref()),
        event.source.as_ref().map_or_else(absent, source),
        event.r#type().as_str_name(),
        event.hash.map_or_else(absent, |hash| format!("{hash:#x}")),
        event.cpu.map_or_else(absent, |cpu| format!("{cpu:02}")),
        event.message,
    );
    printable(&line)
}

fn printable(line: &str) -> String {
    line.replace(char::is_control, "\u{fffd}")
}

fn source(endpoint: &Endpoint) -> String {
    let Endpoint { id, namespace, pod_name, labels, .. } = endpoint;
    match &labels[..] {
        _ if !namespace.is_empty() && !pod_name.is_empty() => format!("{namespace}/{pod_name} (ID: {id})"),
        [label] if label.starts_with("reserved:") => format!("{label} (ID: {id})"),
        _ => format!("ID: {id}"),
    }
}

/// Returns the contents of a notification.
fn details(event: &AgentEvent) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        if !value.is_empty() {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{comma}{name}: {value}");
        }
    };
    let list = |labels: &[String]| format!("[{}]", labels.join(","));
    match &event.notification {
        Some(Notification::Unknown(unknown)) => {
            field("type", &unknown.r#type);
            field("notification", &unknown.notification);
        }
        Some(Notification::AgentStart(start)) => field("start time", &stamp(start.time.as_ref())),
        Some(Notification::PolicyUpdate(policy)) => {
            field("labels", &list(&policy.labels));
            field("revision", &policy.revision.to_string());
            field("count", &policy.rule_count.to_string());
        }
        Some(Notification::EndpointRegenerate(endpoint)) => {
            field("id", &endpoint.id.to_string());
            field("labels", &list(&endpoint.labels));
            field("error", &endpoint.error);
        }
        Some(Notification::EndpointUpdate(endpoint)) => {
            field("id", &endpoint.id.to_string());
            field("namespace", &endpoint.namespace);
            field("pod name", &endpoint.pod_name);
        }
        Some(Notification::IpcacheUpdate(entry)) => {
            field("cidr", &entry.cidr);
            field("identity", &entry.identity.to_string());
            field("old identity", &entry.old_identity.map(|id| id.to_string()).unwrap_or_default());
            field("host ip", &entry.host_ip);
            field("old host ip", &entry.old_host_ip);
            field("encrypt key", &entry.encrypt_key.to_string());
        }
        // Agents do not report changes of services any more.
        Some(Notification::ServiceUpsert(_) | Notification::ServiceDelete(_)) | None => {}
    }
    if text.is_empty() { "UNKNOWN".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{
        AgentEventType, DebugEvent, DebugEventType, EndpointRegenNotification, EndpointUpdateNotification,
        IpCacheNotification, PolicyUpdateNotification, TimeNotification,
    };
    use crate::to_json;

    const AT: prost_types::Timestamp = prost_types::Timestamp { seconds: 1_795_262_729, nanos: 803_000_000 };

    fn response(r#type: AgentEventType, notification: Notification) -> GetAgentEventsResponse {
        let event = AgentEvent { r#type: r#type.into(), notification: Some(notification) };
        GetAgentEventsResponse { agent_event: Some(event), node_name: "n".to_owned(), time: Some(AT) }
    }

    #[test]
    fn notifications_are_lines_and_json() {
        let labels = vec!["k8s:a=b".to_owned(), "k8s:c=d\u{1b}".to_owned()];
        let regenerated =
            EndpointRegenNotification { id: 7, labels: labels.clone(), error: "no memory".to_owned() };
        let failed = response(
            AgentEventType::EndpointRegenerateFailure,
            Notification::EndpointRegenerate(regenerated),
        );
        assert_eq!(
            agent_event_to_compact(&failed),
            "Nov 21 12:05:29.803: ENDPOINT_REGENERATE_FAILURE (id: 7, labels: [k8s:a=b,k8s:c=d\u{fffd}], error: no memory)"
        );
        let created = EndpointUpdateNotification {
            id: 7,
            pod_name: "web".to_owned(),
            namespace: "shop".to_owned(),
            ..Default::default()
        };
        let created = response(AgentEventType::EndpointCreated, Notification::EndpointUpdate(created));
        assert_eq!(
            agent_event_to_compact(&created),
            "Nov 21 12:05:29.803: ENDPOINT_CREATED (id: 7, namespace: shop, pod name: web)"
        );
        assert_eq!(
            to_json(&created),
            r#"{"agent_event":{"type":"ENDPOINT_CREATED","endpoint_update":{"id":"7","pod_name":"web","namespace":"shop"}},"node_name":"n","time":"2026-11-21T12:05:29.803Z"}"#
        );
        let policy = PolicyUpdateNotification { labels: labels[..1].to_vec(), revision: 3, rule_count: 2 };
        let policy = response(AgentEventType::PolicyUpdated, Notification::PolicyUpdate(policy));
        assert_eq!(
            agent_event_to_compact(&policy),
            "Nov 21 12:05:29.803: POLICY_UPDATED (labels: [k8s:a=b], revision: 3, count: 2)"
        );
        let entry = IpCacheNotification {
            cidr: "10.0.0.1/32".to_owned(),
            identity: 9,
            old_identity: Some(2),
            host_ip: "10.1.0.1".to_owned(),
            ..Default::default()
        };
        let entry = response(AgentEventType::IpcacheUpserted, Notification::IpcacheUpdate(entry));
        assert_eq!(
            agent_event_to_compact(&entry),
            "Nov 21 12:05:29.803: IPCACHE_UPSERTED (cidr: 10.0.0.1/32, identity: 9, old identity: 2, host ip: 10.1.0.1, encrypt key: 0)"
        );
        let started = TimeNotification { time: Some(AT) };
        let started = response(AgentEventType::AgentStarted, Notification::AgentStart(started));
        assert_eq!(
            agent_event_to_compact(&started),
            "Nov 21 12:05:29.803: AGENT_STARTED (start time: Nov 21 12:05:29.803)"
        );
    }

    #[test]
    fn debug_messages_are_lines_and_json() {
        let source = Endpoint {
            id: 7,
            namespace: "shop".to_owned(),
            pod_name: "web".to_owned(),
            ..Endpoint::default()
        };
        let event = DebugEvent {
            r#type: DebugEventType::DbgEncap.into(),
            source: Some(source),
            hash: Some(255),
            arg1: Some(0),
            cpu: Some(1),
            message: "Encapsulating to node 1".to_owned(),
            ..DebugEvent::default()
        };
        let response =
            GetDebugEventsResponse { debug_event: Some(event), node_name: String::new(), time: Some(AT) };
        assert_eq!(
            debug_event_to_compact(&response),
            "Nov 21 12:05:29.803: shop/web (ID: 7) DBG_ENCAP MARK: 0xff CPU: 01 (Encapsulating to node 1)"
        );
        assert_eq!(
            to_json(&response),
            r#"{"debug_event":{"type":"DBG_ENCAP","source":{"ID":7,"namespace":"shop","pod_name":"web"},"hash":255,"arg1":0,"message":"Encapsulating to node 1","cpu":1},"time":"2026-11-21T12:05:29.803Z"}"#
        );
        let unknown = Endpoint { id: 9, ..Endpoint::default() };
        assert_eq!(super::source(&unknown), "ID: 9");
        let empty = debug_event_to_compact(&GetDebugEventsResponse::default());
        assert_eq!(empty, ": N/A DBG_EVENT_UNKNOWN MARK: N/A CPU: N/A ()");
    }
}

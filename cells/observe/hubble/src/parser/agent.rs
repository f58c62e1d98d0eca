//! Notifications of the agent, from the JSON of the monitor.

use hubble_api::flow::agent_event::Notification;
use hubble_api::flow::{
    AgentEvent, AgentEventType, AgentEventUnknown, EndpointRegenNotification, EndpointUpdateNotification,
    IpCacheNotification, PolicyUpdateNotification, TimeNotification,
};
use monitor_events::{Agent, notification as kind};
use serde::Deserialize;

/// The keys of all notifications.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Content {
    time: String,
    id: u32,
    labels: Vec<String>,
    error: String,
    pod_name: String,
    namespace: String,
    revision: u64,
    #[serde(rename = "rule_count")]
    rule_count: i64,
    cidr: String,
    old_id: Option<u32>,
    host_ip: String,
    old_host_ip: String,
    encrypt_key: u32,
}

/// Returns the event of a notification. Of an unknown kind or form it has the text.
pub(crate) fn agent_event(agent: &Agent) -> AgentEvent {
    known(agent).unwrap_or_else(|| {
        let unknown = AgentEventUnknown { r#type: agent.kind.to_string(), notification: agent.text.clone() };
        let r#type = AgentEventType::AgentEventUnknown.into();
        AgentEvent { r#type, notification: Some(Notification::Unknown(unknown)) }
    })
}

fn known(agent: &Agent) -> Option<AgentEvent> {
    // The numbers of the monitor and those of Hubble differ.
    let r#type = match agent.kind {
        kind::STARTED => AgentEventType::AgentStarted,
        kind::ENDPOINT_REGENERATED => AgentEventType::EndpointRegenerateSuccess,
        kind::ENDPOINT_FAILED => AgentEventType::EndpointRegenerateFailure,
        kind::POLICY_UPDATED => AgentEventType::PolicyUpdated,
        kind::POLICY_DELETED => AgentEventType::PolicyDeleted,
        kind::ENDPOINT_CREATED => AgentEventType::EndpointCreated,
        kind::ENDPOINT_DELETED => AgentEventType::EndpointDeleted,
        kind::IPCACHE_UPSERTED => AgentEventType::IpcacheUpserted,
        kind::IPCACHE_DELETED => AgentEventType::IpcacheDeleted,
        _ => return None,
    };
    let content: Content = serde_json::from_str(&agent.text).ok()?;
    let notification = match r#type {
        AgentEventType::AgentStarted => {
            Notification::AgentStart(TimeNotification { time: content.time.parse().ok() })
        }
        AgentEventType::PolicyUpdated | AgentEventType::PolicyDeleted => {
            Notification::PolicyUpdate(PolicyUpdateNotification {
                labels: content.labels,
                revision: content.revision,
                rule_count: content.rule_count,
            })
        }
        AgentEventType::EndpointRegenerateSuccess | AgentEventType::EndpointRegenerateFailure => {
            Notification::EndpointRegenerate(EndpointRegenNotification {
                id: content.id.into(),
                labels: content.labels,
                error: content.error,
            })
        }
        AgentEventType::EndpointCreated | AgentEventType::EndpointDeleted => {
            Notification::EndpointUpdate(EndpointUpdateNotification {
                id: content.id.into(),
                labels: content.labels,
                error: content.error,
                pod_name: content.pod_name,
                namespace: content.namespace,
            })
        }
        _ => Notification::IpcacheUpdate(IpCacheNotification {
            cidr: content.cidr,
            identity: content.id,
            old_identity: content.old_id,
            host_ip: content.host_ip,
            old_host_ip: content.old_host_ip,
            encrypt_key: content.encrypt_key,
            namespace: content.namespace,
            pod_name: content.pod_name,
        }),
    };
    Some(AgentEvent { r#type: r#type.into(), notification: Some(notification) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: u32, text: &str) -> AgentEvent {
        agent_event(&Agent { kind, text: text.to_owned() })
    }

    #[test]
    fn each_kind_has_its_message() {
        let started = event(kind::STARTED, r#"{"time":"2026-11-21T12:05:29.000000001Z"}"#);
        let time = Some(prost_types::Timestamp { seconds: 1_795_262_729, nanos: 1 });
        assert_eq!(started.r#type(), AgentEventType::AgentStarted);
        assert_eq!(started.notification, Some(Notification::AgentStart(TimeNotification { time })));

        let created = event(
            kind::ENDPOINT_CREATED,
            r#"{"id":7,"labels":["k8s:a=b"],"pod-name":"web","namespace":"shop"}"#,
        );
        let endpoint = EndpointUpdateNotification {
            id: 7,
            labels: vec!["k8s:a=b".to_owned()],
            error: String::new(),
            pod_name: "web".to_owned(),
            namespace: "shop".to_owned(),
        };
        assert_eq!(created.r#type(), AgentEventType::EndpointCreated);
        assert_eq!(created.notification, Some(Notification::EndpointUpdate(endpoint)));

        let entry = IpCacheNotification {
            cidr: "10.0.0.1/32".to_owned(),
            identity: 9,
            old_identity: Some(0),
            old_host_ip: "10.1.0.1".to_owned(),
            ..IpCacheNotification::default()
        };
        let text = r#"{"cidr":"10.0.0.1/32","id":9,"old-id":0,"old-host-ip":"10.1.0.1","encrypt-key":0}"#;
        let upserted = event(kind::IPCACHE_UPSERTED, text);
        assert_eq!(upserted.r#type(), AgentEventType::IpcacheUpserted);
        assert_eq!(upserted.notification, Some(Notification::IpcacheUpdate(entry)));

        let deleted = event(kind::POLICY_DELETED, r#"{"labels":["a"],"revision":3,"rule_count":2}"#);
        let policy = PolicyUpdateNotification { labels: vec!["a".to_owned()], revision: 3, rule_count: 2 };
        assert_eq!(deleted.r#type(), AgentEventType::PolicyDeleted);
        assert_eq!(deleted.notification, Some(Notification::PolicyUpdate(policy)));
    }

    #[test]
    fn an_unknown_kind_or_form_keeps_its_text() {
        for (kind, text) in [(11, r#"{"id":1}"#), (kind::STARTED, "no JSON")] {
            let unknown = AgentEventUnknown { r#type: kind.to_string(), notification: text.to_owned() };
            let expected = AgentEvent { r#type: 0, notification: Some(Notification::Unknown(unknown)) };
            assert_eq!(event(kind, text), expected);
        }
    }
}

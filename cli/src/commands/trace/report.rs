//! The outcome of a probe: by its steps and by the answer at its socket, as text and with the next commands.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use datapath_abi::trace as point;
use serde::Serialize;

use super::observe::{Step, StepEvent};
use super::probe::{Answer, Protocol};
use crate::output::printable;

/// The result of a probe.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) source: String,
    pub(super) destination: String,
    pub(super) protocol: Protocol,
    pub(super) source_port: u16,
    /// The service with the destination's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) service: Option<String>,
    pub(super) steps: Vec<Explained>,
    /// Events that the monitor could not deliver.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) lost: u64,
    pub(super) answer: Option<Answer>,
    pub(super) outcome: Outcome,
    pub(super) verdict: String,
    pub(super) next: Vec<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A step with its explanation.
#[derive(Debug, Serialize)]
pub(super) struct Explained {
    #[serde(flatten)]
    pub(super) step: Step,
    pub(super) text: String,
    /// The rules of policy that decide.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) rules: Vec<String>,
}

/// The outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// The destination has answered.
    Answered,
    /// It has arrived, and was refused there.
    Refused,
    /// It has arrived; there is no answer.
    Delivered,
    /// A proxy of this node has it.
    Proxied,
    /// It has left this node, or its datapath; there is no answer.
    Left,
    /// It was dropped.
    Dropped,
    /// The reply was dropped.
    ReplyDropped,
    /// No place has seen it.
    Unseen,
}

/// Returns the outcome by the steps and the answer.
pub(super) fn outcome<'s>(steps: impl IntoIterator<Item = &'s Step>, answer: Option<&Answer>) -> Outcome {
    let mut outcome = Outcome::Unseen;
    for step in steps {
        let found = match (&step.event, step.is_reply) {
            (StepEvent::Drop { .. }, false) => Outcome::Dropped,
            (StepEvent::Drop { .. }, true) => Outcome::ReplyDropped,
            (StepEvent::Trace { code: point::TO_LXC | point::TO_HOST, .. }, false) => Outcome::Delivered,
            (StepEvent::Trace { code: point::TO_PROXY, .. }, false) => Outcome::Proxied,
            (StepEvent::Trace { .. }, false) => Outcome::Left,
            _ => continue,
        };
        // A packet that is sent again may fare better than the first.
        if outcome != Outcome::Delivered || found == Outcome::ReplyDropped {
            outcome = found;
        }
    }
    match answer {
        Some(Answer::Answered) => Outcome::Answered,
        Some(Answer::Refused(_)) if outcome != Outcome::Dropped => Outcome::Refused,
        _ => outcome,
    }
}

/// Returns a sentence on the outcome.
pub(super) fn verdict(outcome: Outcome, steps: &[Explained], answer: Option<&Answer>) -> String {
    let last = |is_reply: bool| steps.iter().rev().find(|one| one.step.is_reply == is_reply);
    let place = |is_reply: bool| last(is_reply).map_or("", |one| &*one.text);
    match (outcome, answer) {
        (Outcome::Answered, _) => "REACHED: the destination has answered".to_owned(),
        (_, Some(Answer::Refused(error))) if outcome == Outcome::Refused => format!("REFUSED: {error}"),
        (Outcome::Refused, _) => "REFUSED".to_owned(),
        (Outcome::Delivered, _) => {
            "DELIVERED: it has reached its receiver on this node; there was no answer in time".to_owned()
        }
        (Outcome::Proxied, _) => {
            "REDIRECTED: a proxy of this node has it; there was no answer in time".to_owned()
        }
        (Outcome::Left, _) => {
            format!("LEFT: it was last seen as: {}; there was no answer in time", place(false))
        }
        (Outcome::Dropped, _) => format!("DROPPED: {}", dropped(steps, false)),
        (Outcome::ReplyDropped, _) => format!("DROPPED ON THE WAY BACK: {}", dropped(steps, true)),
        (Outcome::Unseen, _) => "UNSEEN: no program of this node has reported it".to_owned(),
    }
}

fn dropped(steps: &[Explained], is_reply: bool) -> String {
    let drops = steps.iter().filter(|one| one.step.is_reply == is_reply);
    let mut reasons = drops.filter_map(|one| match &one.step.event {
        StepEvent::Drop { reason, code, .. } => Some(format!("{reason} ({code})")),
        _ => None,
    });
    reasons.next().unwrap_or_default()
}

/// Returns the commands that may tell more.
pub(super) fn next(report: &Report, is_aggregated: bool, why: &str) -> Vec<String> {
    let reason = |is_reply: bool| {
        report.steps.iter().find_map(|one| match &one.step.event {
            StepEvent::Drop { code, .. } if one.step.is_reply == is_reply => Some(*code),
            _ => None,
        })
    };
    let explain = |is_reply| reason(is_reply).map(|code| format!("apiary explain {code}"));
    let mut commands = Vec::new();
    match report.outcome {
        Outcome::Answered => {}
        Outcome::Dropped => {
            commands.extend(explain(false));
            commands.push(why.to_owned());
        }
        Outcome::ReplyDropped => {
            commands.extend(explain(true));
            commands.push("apiary bpf ct list global".to_owned());
        }
        Outcome::Refused | Outcome::Delivered => commands.push(why.to_owned()),
        Outcome::Proxied => commands.push("apiary hubble observe -t l7 --last 20".to_owned()),
        Outcome::Left => {
            commands.push(why.to_owned());
            commands.push(format!("apiary monitor, on the node of {}", report.destination));
        }
        Outcome::Unseen => {
            commands.push("apiary endpoint list".to_owned());
            commands.push(why.to_owned());
        }
    }
    if is_aggregated && report.outcome != Outcome::Answered {
        commands.push("apiary config MonitorAggregationLevel=None, to have each place reported".to_owned());
    }
    commands
}

impl Report {
    /// Returns the report for people.
    pub(super) fn text(&self) -> String {
        let Self { source, destination, source_port, protocol, .. } = self;
        let mut text = format!("Probe: {source} -> {destination}");
        let _ = match protocol {
            Protocol::Tcp => writeln!(text, ", TCP SYN from port {source_port}"),
            Protocol::Udp => writeln!(text, ", a UDP datagram from port {source_port}"),
            Protocol::Icmp => writeln!(text, ", an echo request"),
        };
        if let Some(service) = &self.service {
            let _ = writeln!(text, "Service: {service}");
        }
        for (number, Explained { step, text: words, rules }) in (1..).zip(&self.steps) {
            let way = if step.is_reply { "reply: " } else { "" };
            let _ = writeln!(text, "{number:>3}. {way}{words}");
            let _ = writeln!(text, "     {} -> {}", step.source, step.destination);
            for rule in rules {
                let _ = writeln!(text, "     {rule}");
            }
        }
        if self.lost > 0 {
            let _ = writeln!(text, "     {} events were lost: places may be missing", self.lost);
        }
        let _ = writeln!(text, "{}", self.verdict);
        for command in &self.next {
            let _ = writeln!(text, "Next: {command}");
        }
        // Names are from the cluster.
        printable(&text)
    }
}

/// Names of endpoints.
#[derive(Debug, Default)]
pub(super) struct Names(pub(super) BTreeMap<u16, String>);

impl Names {
    fn endpoint(&self, id: u16) -> String {
        match self.0.get(&id) {
            Some(name) => format!("endpoint {id} ({name})"),
            None => format!("endpoint {id}"),
        }
    }

    /// Returns the sentence of a step.
    pub(super) fn explain(&self, step: &Step, service: Option<&str>) -> String {
        match &step.event {
            StepEvent::Socket { is_translated: false } => match service {
                Some(service) => format!("at the pod's socket: the address of service {service}"),
                None => "at the pod's socket: the address of a service".to_owned(),
            },
            StepEvent::Socket { is_translated: true } => {
                format!("at the pod's socket: translated to the backend {}", step.destination)
            }
            StepEvent::Verdict { endpoint, is_ingress, action, .. } => {
                let direction = if *is_ingress { "ingress" } else { "egress" };
                format!("{direction} policy of {}: {action}", self.endpoint(*endpoint))
            }
            StepEvent::Drop { reason, code, place, endpoint } => {
                let by = if *endpoint == 0 {
                    String::new()
                } else {
                    format!(", program of {}", self.endpoint(*endpoint))
                };
                format!("DROPPED: {reason} ({code}) at {place}{by}")
            }
            StepEvent::Trace { code, endpoint, state, interface, point: name } => {
                let words = match *code {
                    point::TO_LXC => format!("delivered to {}", self.endpoint(*endpoint)),
                    point::FROM_LXC => format!("sent by {}", self.endpoint(*endpoint)),
                    point::TO_HOST => "delivered to this node's own stack".to_owned(),
                    point::TO_STACK => "handed to the node's stack, which routes it".to_owned(),
                    point::TO_NETWORK => "leaves the node".to_owned(),
                    point::TO_OVERLAY => "leaves the node by the tunnel".to_owned(),
                    point::TO_PROXY => "redirected to a proxy of this node".to_owned(),
                    point::TO_CRYPTO => "handed to encryption".to_owned(),
                    _ => "arrives in the datapath".to_owned(),
                };
                let on = if *interface == 0 { String::new() } else { format!(", interface {interface}") };
                format!("{name}: {words}, connection {state}{on}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(event: StepEvent, is_reply: bool) -> Step {
        let (source, destination) = ("10.0.0.1:40000".to_owned(), "10.0.0.2:80".to_owned());
        Step { is_reply, event, source, destination, to: None, source_identity: 0, destination_identity: 0 }
    }

    fn trace(code: u8, endpoint: u16) -> StepEvent {
        let point = point::label(code).unwrap();
        StepEvent::Trace { point, code, endpoint, state: "new", interface: 0 }
    }

    fn drop() -> StepEvent {
        let (reason, place) = ("Policy denied".to_owned(), "bpf_lxc.c:9".to_owned());
        StepEvent::Drop { reason, code: 133, endpoint: 7, place }
    }

    #[test]
    fn outcomes_are_those_of_the_last_place_and_of_the_answer() {
        let of = |events: &[(StepEvent, bool)], answer: Option<Answer>| {
            let steps: Vec<Step> =
                events.iter().map(|(event, is_reply)| step(event.clone(), *is_reply)).collect();
            outcome(&steps, answer.as_ref())
        };
        let allowed =
            StepEvent::Verdict { endpoint: 7, is_ingress: false, action: "allowed", drop_reason: 0 };
        assert_eq!(of(&[], None), Outcome::Unseen);
        assert_eq!(of(&[(allowed.clone(), false)], None), Outcome::Unseen, "a verdict is no place");
        let delivered = (trace(point::TO_LXC, 9), false);
        assert_eq!(of(&[(allowed, false), delivered.clone()], None), Outcome::Delivered);
        assert_eq!(of(&[(trace(point::TO_STACK, 0), false)], None), Outcome::Left);
        assert_eq!(of(&[(trace(point::TO_PROXY, 0), false)], None), Outcome::Proxied);
        assert_eq!(of(&[(drop(), false)], None), Outcome::Dropped);
        let refused = || Some(Answer::Refused("connection refused".to_owned()));
        assert_eq!(of(&[(drop(), false)], refused()), Outcome::Dropped, "by an answer of this node");
        assert_eq!(of(&[delivered.clone(), (trace(point::TO_LXC, 7), true)], refused()), Outcome::Refused);
        assert_eq!(of(&[delivered.clone(), (drop(), true)], None), Outcome::ReplyDropped);
        assert_eq!(of(&[delivered], Some(Answer::Answered)), Outcome::Answered);
    }

    #[test]
    fn a_report_has_each_place_the_verdict_and_the_next_commands() {
        let names = Names([(7, "shop/web\u{1b}[2J".to_owned())].into());
        let explained = |event, rules: &[&str]| {
            let step = step(event, false);
            let text = names.explain(&step, Some("shop/db"));
            Explained { step, text, rules: rules.iter().map(|rule| (*rule).to_owned()).collect() }
        };
        let denied =
            StepEvent::Verdict { endpoint: 7, is_ingress: false, action: "denied", drop_reason: 133 };
        let steps = vec![explained(denied, &["no rule allows it"]), explained(drop(), &[])];
        let outcome = outcome(steps.iter().map(|one| &one.step), None);
        let mut report = Report {
            source: "shop/web".to_owned(),
            destination: "10.0.0.2:80".to_owned(),
            protocol: Protocol::Tcp,
            source_port: 40_000,
            service: None,
            verdict: verdict(outcome, &steps, None),
            steps,
            lost: 0,
            answer: None,
            outcome,
            next: Vec::new(),
        };
        report.next = next(&report, true, "apiary why 7 10.0.0.2 80/tcp");
        let text = report.text();
        let expected = [
            "Probe: shop/web -> 10.0.0.2:80, TCP SYN from port 40000",
            "  1. egress policy of endpoint 7 (shop/web\u{fffd}[2J): denied",
            "     10.0.0.1:40000 -> 10.0.0.2:80",
            "     no rule allows it",
            "  2. DROPPED: Policy denied (133) at bpf_lxc.c:9, program of endpoint 7 (shop/web\u{fffd}[2J)",
            "     10.0.0.1:40000 -> 10.0.0.2:80",
            "DROPPED: Policy denied (133)",
            "Next: apiary explain 133",
            "Next: apiary why 7 10.0.0.2 80/tcp",
            "Next: apiary config MonitorAggregationLevel=None, to have each place reported",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}

//! Parses one rule: `spec`, or an element of `specs`.

use std::sync::Arc;

use labels::{Label, UNSPECIFIED};

use super::cursor::{Field, Object, Problems, quoted};
use super::icmp::icmp;
use super::peers::{REQUIRES, SERVICES, has_empty_list, peers};
use super::ports::port_rule;
use super::proxy::About;
use super::selectors::LabelSelector;
use super::services::service;
use super::{Context, Section, label_texts};
use crate::model::{
    Authentication, Direction, Entry, Kind, Peers, PortSpec, Ports, RedirectSpec, Subject, Tier,
};
use crate::proxy::ProxyRules;
use crate::services::ServiceSelector;

/// The maximum length of a text for the log: the limit of Cilium's CRD.
const MAX_LOG_CHARS: usize = 32;

const FIELDS: [&str; 10] = [
    "description",
    "egress",
    "egressDeny",
    "enableDefaultDeny",
    "endpointSelector",
    "ingress",
    "ingressDeny",
    "labels",
    "log",
    "nodeSelector",
];

/// Reads the entries of a rule, in the order ingress, ingressDeny, egress, egressDeny.
pub(super) fn rule(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Vec<Entry> {
    let Some(rule) = field.object(problems) else { return Vec::new() };
    rule.check_names(problems, &FIELDS, &[]);
    rule.text("description", problems);
    let log = log_value(&rule, problems);
    let labels = label_texts(&context.origin, user_labels(&rule, problems));
    let subject = subject(&rule, context, problems);
    let subject_is_init = subject.as_ref().is_some_and(|(_, is_init)| *is_init);
    let about = if rule.field("nodeSelector").is_some() { About::Nodes } else { About::Endpoints };
    let default_deny = DefaultDeny::read(&rule, context, problems);

    let mut entries = Vec::new();
    let mut filled = false;
    for section in Section::ALL {
        let list = rule.field(section.name()).and_then(|field| field.list(problems)).unwrap_or_default();
        filled |= !list.is_empty();
        for field in list {
            let default_deny = default_deny.of(section.direction());
            let reader = EntryReader { section, context, about, subject_is_init, default_deny };
            let Some(parts) = reader.read(&field, problems) else { continue };
            let Some((subject, _)) = &subject else { continue };
            let Parts { peers, services, ports, redirects, authentication } = parts;
            entries.push(Entry {
                subject: subject.clone(),
                direction: section.direction(),
                action: section.action(),
                tier: Tier::Normal,
                priority: 0,
                default_deny,
                peers,
                services,
                ports,
                redirects,
                authentication,
                log: Arc::clone(&log),
                path: field.path.into(),
                labels: Arc::clone(&labels),
            });
        }
    }
    let wrong_type = Section::ALL.iter().any(|s| rule.field(s.name()).is_some_and(|f| !f.value.is_array()));
    if !filled && !wrong_type {
        problems.add(
            &rule.path,
            "ingress, ingressDeny, egress and egressDeny are all absent or empty",
            "write one of them; `ingress: [{}]` denies what nothing allows",
        );
    }
    entries
}

/// Reads the subject of a rule, and whether its selector names the label `reserved:init`.
fn subject(rule: &Object<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<(Subject, bool)> {
    let (endpoints, nodes) = (rule.field("endpointSelector"), rule.field("nodeSelector"));
    match (endpoints, nodes) {
        (Some(endpoints), Some(nodes)) => {
            problems.add(
                &nodes.path,
                "given beside endpointSelector",
                "a rule is about endpoints or about nodes",
            );
            LabelSelector::read(&endpoints, problems);
            LabelSelector::read(&nodes, problems);
            None
        }
        (None, None) => {
            problems.add(&rule.path_of("endpointSelector"), "missing", "`endpointSelector: {}` selects all");
            None
        }
        (Some(endpoints), None) => {
            let selector = LabelSelector::read(&endpoints, problems)?;
            if selector.names_other_namespace(context.namespace) {
                problems.warn(
                    &endpoints.path,
                    format!("names another namespace: the policy selects in {} only", context.namespace),
                    "write the policy in that namespace",
                );
            }
            let is_init = selector.names_init();
            Some((Subject::Endpoints(selector.into_subject(context.namespace)), is_init))
        }
        (None, Some(nodes)) => {
            if context.kind == Kind::CiliumNetworkPolicy {
                problems.add(
                    &nodes.path,
                    "a policy of a namespace cannot be about nodes",
                    "use a CiliumClusterwideNetworkPolicy",
                );
            }
            let selector = LabelSelector::read(&nodes, problems)?;
            Some((Subject::Node(selector.into_node()), false))
        }
    }
}

/// The default deny of a rule per direction: whether traffic that no rule allows is dropped.
struct DefaultDeny {
    ingress: bool,
    egress: bool,
}

impl DefaultDeny {
    fn read(rule: &Object<'_>, context: &Context<'_>, problems: &mut Problems) -> DefaultDeny {
        let object = rule.field("enableDefaultDeny").and_then(|field| field.object(problems));
        if let Some(object) = &object {
            object.check_names(problems, &["ingress", "egress"], &[]);
        }
        let mut read = |name| {
            let field = object.as_ref().and_then(|object| object.field(name));
            let given = field.and_then(|field| field.boolean(problems));
            given.unwrap_or(true) || !context.settings.non_default_deny
        };
        DefaultDeny { ingress: read("ingress"), egress: read("egress") }
    }

    fn of(&self, direction: Direction) -> bool {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }
}

/// The parts of an entry that its element in a section contains.
struct Parts {
    peers: Peers,
    services: Vec<ServiceSelector>,
    ports: Ports,
    redirects: Vec<RedirectSpec>,
    authentication: Option<Authentication>,
}

/// The surroundings of an element of a section.
struct EntryReader<'a> {
    section: Section,
    context: &'a Context<'a>,
    about: About,
    subject_is_init: bool,
    default_deny: bool,
}

impl EntryReader<'_> {
    fn read(&self, field: &Field<'_>, problems: &mut Problems) -> Option<Parts> {
        let EntryReader { section, context, .. } = *self;
        let entry = field.object(problems)?;
        let services = (section.direction() == Direction::Egress).then_some(SERVICES);
        let requires = REQUIRES[usize::from(section.direction() == Direction::Egress)];
        if !entry.elements(requires, problems).is_empty() {
            let remedy = "select these peers by each of the other fields";
            problems.add(&entry.path_of(requires), "not part of the API any more", remedy);
        }
        let authenticates = section.allows().then_some("authentication");
        let known: Vec<&str> = section
            .peer_fields()
            .iter()
            .copied()
            .chain(["toPorts", "icmps", requires])
            .chain(services)
            .chain(authenticates)
            .collect();
        // An unimplemented field with an empty list has no effect, so it is accepted.
        let is_empty =
            |name: &str| entry.field(name).is_some_and(|f| f.value.as_array().is_some_and(Vec::is_empty));
        let (empty, unbuilt): (Vec<_>, Vec<_>) =
            section.unbuilt_peer_fields().iter().copied().partition(|(name, _)| is_empty(name));
        let known: Vec<&str> = known.into_iter().chain(empty.iter().map(|(name, _)| *name)).collect();
        entry.check_names(problems, &known, &unbuilt);

        let authentication = entry
            .field("authentication")
            .filter(|_| section.allows())
            .and_then(|f| authentication(&f, problems));
        let peers = peers(&entry, section, context, self.subject_is_init, problems);
        let services = match section.direction() {
            Direction::Ingress => Vec::new(),
            Direction::Egress => entry.elements(SERVICES, problems),
        };
        let services: Vec<ServiceSelector> =
            services.iter().filter_map(|field| service(field, problems)).collect();
        let services = if has_empty_list(&entry, section) { Vec::new() } else { services };
        let (ports, icmps) = (entry.elements("toPorts", problems), entry.elements("icmps", problems));
        if !ports.is_empty() && !icmps.is_empty() {
            problems.add(&entry.path_of("icmps"), "given beside toPorts", "make each an entry of its own");
        }
        let named = !ports.is_empty() || !icmps.is_empty();
        let (mut specs, mut redirects) = (Vec::new(), Vec::new());
        for field in &ports {
            match port_rule(field, section, self.about, context, problems) {
                (plain, None) => specs.extend(plain),
                (ports, Some(rules)) => redirects.extend(self.redirects(ports, rules)),
            }
        }
        specs.extend(icmps.iter().flat_map(|field| icmp(field, context, problems)));
        let ports = if named { Ports::Of(specs) } else { Ports::All };
        // `{}` selects neither peers nor ports: the entry matches nothing, and its default deny applies.
        let peers = peers.unwrap_or(if named { Peers::All } else { Peers::Nothing });
        Some(Parts { peers, services, ports, redirects, authentication })
    }

    /// Returns the redirects of an element of `toPorts`. Without default deny its rules must not reduce what passes.
    fn redirects(&self, ports: Vec<PortSpec>, mut rules: ProxyRules) -> impl Iterator<Item = RedirectSpec> {
        if !self.default_deny {
            rules.l7 = rules.l7.with_wildcard();
        }
        let rules = Arc::new(rules);
        ports.into_iter().map(move |port| RedirectSpec { port, rules: rules.clone() })
    }
}

fn authentication(field: &Field<'_>, problems: &mut Problems) -> Option<Authentication> {
    let object = field.object(problems)?;
    object.check_names(problems, &["mode"], &[]);
    let mode = object.text("mode", problems);
    let known = Authentication::ALL.into_iter().find(|known| known.mode() == mode);
    if known.is_none() {
        let reason = match mode.is_empty() {
            true => "missing".to_owned(),
            false => format!("{}: not a mode", quoted(&mode.into())),
        };
        problems.add(&object.path_of("mode"), reason, "disabled, required or test-always-fail");
    }
    known
}

/// Reads the text for the log of verdicts.
fn log_value(rule: &Object<'_>, problems: &mut Problems) -> Arc<str> {
    let Some(log) = rule.field("log").and_then(|field| field.object(problems)) else { return "".into() };
    log.check_names(problems, &["value"], &[]);
    let value = log.text("value", problems);
    if value.chars().count() > MAX_LOG_CHARS || value.chars().any(char::is_control) {
        let reason =
            format!("{}: longer than {MAX_LOG_CHARS} characters, or not printable", quoted(&value.into()));
        problems.add(&log.path_of("value"), reason, "shorten it");
    }
    value.into()
}

/// Reads the user's own labels of a rule: texts or `{key, source, value}`.
fn user_labels(rule: &Object<'_>, problems: &mut Problems) -> Vec<Label> {
    let mut labels = Vec::new();
    for field in rule.elements("labels", problems) {
        let label = match field.value.as_str() {
            Some(text) => Label::parse(text),
            None => {
                let Some(object) = field.object(problems) else { continue };
                object.check_names(problems, &["key", "source", "value"], &[]);
                let mut text = |name| object.text(name, problems).to_owned();
                Label { key: text("key"), value: text("value"), source: text("source") }
            }
        };
        if label.key.is_empty() {
            problems.add(&field.path, "a label without a key", "write key, value and source");
            continue;
        }
        let source = if label.source.is_empty() { UNSPECIFIED.to_owned() } else { label.source };
        labels.push(Label { source, ..label });
    }
    labels
}

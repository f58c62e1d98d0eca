//! Conditions on the contents of requests and responses.

use hubble_api::flow::layer7::Record;
use hubble_api::flow::{Dns, Flow, FlowFilter, Http};
use monitor_events::ACCESS_LOG;
use regex::{Regex, RegexBuilder};

use super::{BadFilter, Filter};

/// The maximum memory of a compiled expression: clients choose it.
const MAX_EXPRESSION_BYTES: usize = 1 << 20;

impl Filter {
    /// Adds the conditions on DNS, HTTP and traces.
    pub(super) fn contents(&mut self, filter: &FlowFilter) -> Result<(), BadFilter> {
        check_event_types(filter)?;
        self.any(
            &filter.dns_query,
            |text| expression("dns_query", &text),
            |query, flow| dns(flow).is_some_and(|dns| query.is_match(&dns.query)),
        )?;
        self.any(
            &filter.http_status_code,
            |text| StatusCode::parse(&text),
            |code, flow| http(flow).is_some_and(|http| code.matches(http.code)),
        )?;
        self.one_of(&filter.http_method, |method, flow| {
            http(flow).is_some_and(|http| http.method.eq_ignore_ascii_case(method))
        });
        self.any(
            &filter.http_path,
            |text| expression("http_path", &text),
            |path, flow| http(flow).is_some_and(|http| path.is_match(path_of(&http.url))),
        )?;
        self.any(
            &filter.http_url,
            |text| expression("http_url", &text),
            |url, flow| http(flow).is_some_and(|http| url.is_match(&http.url)),
        )?;
        self.one_of(&filter.http_header, |header, flow| {
            http(flow).is_some_and(|http| http.headers.contains(header))
        });
        self.one_of(&filter.trace_id, |id, flow| {
            let parent = flow.trace_context.as_ref().and_then(|context| context.parent.as_ref());
            parent.map_or("", |parent| &parent.trace_id) == id
        });
        Ok(())
    }
}

/// Refuses conditions on HTTP together with types of events that have none.
fn check_event_types(filter: &FlowFilter) -> Result<(), BadFilter> {
    let fields = [
        ("http_status_code", filter.http_status_code.is_empty()),
        ("http_method", filter.http_method.is_empty()),
        ("http_path", filter.http_path.is_empty()),
        ("http_url", filter.http_url.is_empty()),
        ("http_header", filter.http_header.is_empty()),
    ];
    let types = &filter.event_type;
    let has_l7 = types.is_empty() || types.iter().any(|event| event.r#type == i32::from(ACCESS_LOG));
    match fields.into_iter().find(|(_, is_empty)| !is_empty && !has_l7) {
        Some((field, _)) => {
            let problem = "needs the event type l7, and only others are selected".to_owned();
            Err(BadFilter { field, problem })
        }
        None => Ok(()),
    }
}

fn record(flow: &Flow) -> Option<&Record> {
    flow.l7.as_ref()?.record.as_ref()
}

pub(super) fn dns(flow: &Flow) -> Option<&Dns> {
    match record(flow)? {
        Record::Dns(dns) => Some(dns),
        _ => None,
    }
}

pub(super) fn http(flow: &Flow) -> Option<&Http> {
    match record(flow)? {
        Record::Http(http) => Some(http),
        _ => None,
    }
}

fn expression(field: &'static str, text: &str) -> Result<Regex, BadFilter> {
    let compiled = RegexBuilder::new(text).size_limit(MAX_EXPRESSION_BYTES).build();
    compiled.map_err(|error| BadFilter { field, problem: error.to_string() })
}

/// Returns the path of a URL.
fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest.find('/').map_or("", |at| &rest[at..]));
    rest.split(['?', '#']).next().unwrap_or_default()
}

/// A status code, or the beginning of one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StatusCode {
    Exact(u32),
    Prefix(String),
}

impl StatusCode {
    /// Parses `404`, `40+` or `4+`.
    fn parse(text: &str) -> Result<Self, BadFilter> {
        let is_code = |digits: &str| {
            digits.starts_with(['1', '2', '3', '4', '5']) && digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        let parsed = match text.strip_suffix('+') {
            Some(prefix) if is_code(prefix) && prefix.len() <= 2 => Some(Self::Prefix(prefix.to_owned())),
            None if is_code(text) && text.len() == 3 => text.parse().ok().map(Self::Exact),
            _ => None,
        };
        let problem = || format!("{text:?} is no status code such as 404, 40+ or 4+");
        parsed.ok_or_else(|| BadFilter { field: "http_status_code", problem: problem() })
    }

    fn matches(&self, code: u32) -> bool {
        match self {
            Self::Exact(exact) => *exact == code,
            Self::Prefix(prefix) => code != 0 && code.to_string().starts_with(prefix),
        }
    }
}

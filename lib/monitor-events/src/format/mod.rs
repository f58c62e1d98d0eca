//! The lines of `cilium-dbg monitor`.
//!
//! [`Printer`] chooses the form; [`mod@line`] has the short lines, [`verbose`] the long form with all layers, [`json`] the
//! objects, [`debug`] the texts of debug messages and captures, [`mod@record`] both forms of records of proxies, [`names`]
//! the texts of codes.

mod debug;
mod filter;
mod json;
mod line;
mod names;
mod record;
mod verbose;

use std::collections::BTreeMap;
use std::fmt;

pub use filter::{Filter, Kind};
pub(crate) use names::{frame, verdict_frame};

use crate::decode::{Debug, Event, decode};
use crate::gob::{LOST, Payload, SAMPLE};

/// The form in which events are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A line an event, without debug messages.
    #[default]
    Brief,
    /// The same with debug messages and translations at sockets.
    Verbose,
    /// All layers of packets.
    Debug,
    /// A JSON object a line.
    Json,
}

/// Names of links.
pub trait LinkNames: fmt::Debug {
    /// Returns the name of the link with this ifindex, if it is known.
    fn name(&self, ifindex: u32) -> Option<String>;
}

impl LinkNames for BTreeMap<u32, String> {
    fn name(&self, ifindex: u32) -> Option<String> {
        self.get(&ifindex).cloned()
    }
}

/// Texts that rules of policies have for the log of verdicts.
pub trait PolicyTexts: fmt::Debug {
    /// Returns the texts of a cookie; none if it is unknown.
    fn texts(&self, cookie: u32) -> Vec<String>;
}

impl PolicyTexts for BTreeMap<u32, Vec<String>> {
    fn texts(&self, cookie: u32) -> Vec<String> {
        self.get(&cookie).cloned().unwrap_or_default()
    }
}

/// Formats events.
#[derive(Debug)]
pub struct Printer {
    /// The form.
    pub format: Format,
    /// Reserved identities are printed as numbers, too.
    pub numeric: bool,
    /// In the form [`Format::Debug`], packets are printed as hexadecimal numbers.
    pub hex: bool,
    /// Names of links; others are printed as their number.
    pub links: Box<dyn LinkNames>,
    /// Texts of policies, which Cilium's lines lack; none are printed for unknown cookies.
    pub texts: Box<dyn PolicyTexts>,
}

impl Default for Printer {
    fn default() -> Self {
        let (links, texts) = (Box::new(BTreeMap::new()), Box::new(BTreeMap::new()));
        Self { format: Format::default(), numeric: false, hex: false, links, texts }
    }
}

impl Printer {
    /// Formats a value of the stream, with its newline; `None` if nothing is printed.
    #[must_use]
    pub fn payload(&self, payload: &Payload, filter: &Filter) -> Option<String> {
        match payload.kind {
            SAMPLE => self.event(&payload.data, payload.cpu, filter),
            LOST => Some(format!("{} Lost {} events\n", prefix(payload.cpu), payload.lost)),
            kind => Some(format!(
                "Unknown payload type: {kind}, {} Lost {} events\n",
                prefix(payload.cpu),
                payload.lost
            )),
        }
    }

    /// Formats an event of the ring of `cpu`, with its newline; `None` if the filter or the form omits it.
    #[must_use]
    pub fn event(&self, data: &[u8], cpu: i64, filter: &Filter) -> Option<String> {
        let event = match decode(data) {
            Ok(event) => event,
            Err(error) => {
                let kind = data.first().copied().unwrap_or_default();
                return Some(format!("cannot decode message type '{kind}': {error}\n"));
            }
        };
        if !filter.matches(&event) {
            return None;
        }
        let cpu = prefix(cpu);
        let text = match (&event, self.format) {
            (Event::Unknown(data), _) => Some(format!("{cpu} Unknown event: {}", names::go_bytes(data))),
            (_, Format::Json) => json::format(self, &event, &cpu),
            (_, Format::Debug) => verbose::format(self, &event, &cpu),
            (_, Format::Brief | Format::Verbose) => line::format(self, &event, &cpu),
        };
        text.map(|mut text| {
            if !text.ends_with('\n') {
                text.push('\n');
            }
            text
        })
    }

    /// Returns the text of a debug message.
    #[must_use]
    pub fn debug_message(&self, message: &Debug) -> String {
        debug::message(self, message)
    }

    /// Returns the name of an identity.
    fn identity(&self, identity: u32) -> String {
        match datapath_abi::identity::label(identity) {
            Some(name) if !self.numeric => name.to_owned(),
            _ => identity.to_string(),
        }
    }

    /// Returns the name of a link.
    fn link(&self, ifindex: u32) -> String {
        self.links.name(ifindex).map_or_else(|| ifindex.to_string(), |name| names::printable(&name))
    }
}

/// Returns the beginning of a line.
fn prefix(cpu: i64) -> String {
    format!("CPU {cpu:02}:")
}

#[cfg(test)]
mod tests;

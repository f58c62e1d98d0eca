//! The operations under `/fqdn`.

use std::net::IpAddr;

use api::{Request, Response};
use fqdn::{Lookup, Names, Pattern, canonical};
use ipnetwork::IpNetwork;
use jiff::Timestamp;
use serde::Serialize;

use crate::book::Book;

/// An entry, in the form of Cilium's API.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    #[serde(skip_serializing_if = "is_zero")]
    endpoint_id: u16,
    expiration_time: String,
    fqdn: String,
    ips: Vec<IpAddr>,
    lookup_time: String,
    source: &'static str,
    #[serde(skip_serializing_if = "is_zero_ttl")]
    ttl: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(id: &u16) -> bool {
    *id == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as above")]
fn is_zero_ttl(ttl: &u32) -> bool {
    *ttl == 0
}

/// The filters of a request.
struct Filters {
    endpoint: Option<u16>,
    prefix: Option<IpNetwork>,
    pattern: Option<Pattern>,
}

impl Filters {
    fn pass(&self, endpoint: u16, name: &str, address: IpAddr) -> bool {
        self.endpoint.is_none_or(|id| id == endpoint)
            && self.prefix.is_none_or(|prefix| prefix.contains(address))
            && self.pattern.as_ref().is_none_or(|pattern| pattern.matches(name))
    }
}

/// Answers `GET /fqdn/cache` and `GET /fqdn/cache/{id}`. Names that only connections keep expire with the next
/// collection, at `next_collection`.
pub(crate) fn cache(book: &Book, request: &Request, next_collection: Timestamp) -> Response {
    if let Some(refused) = api::refused_name_filters(request) {
        return refused;
    }
    let endpoint = match request.param("id") {
        "" => None,
        text => match text.parse() {
            Ok(id) => Some(id),
            Err(_) => return Response::empty(404),
        },
    };
    let source = request.query("source").unwrap_or_default();
    let filters = Filters {
        endpoint,
        prefix: request.query("cidr").and_then(|text| text.parse().ok()),
        pattern: pattern(request),
    };
    let mut entries = Vec::new();
    if source == "global" {
        entries.extend(book.names().lookups().into_iter().map(|lookup| entry(0, lookup, "global")));
    }
    if source.is_empty() || source == "lookup" {
        entries.extend(lookups(book.names(), &filters));
    }
    if source.is_empty() || source == "connection" {
        entries.extend(connections(book.names(), &filters, next_collection));
    }
    match entries.is_empty() {
        true => Response::empty(404),
        false => Response::json(200, &entries),
    }
}

fn lookups(names: &Names, filters: &Filters) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (endpoint, history) in names.histories() {
        for mut lookup in history.cache().lookups() {
            let name = lookup.name.clone();
            lookup.addresses.retain(|address| filters.pass(endpoint, &name, *address));
            if !lookup.addresses.is_empty() {
                entries.push(entry(endpoint, lookup, "lookup"));
            }
        }
    }
    entries
}

fn connections(names: &Names, filters: &Filters, next_collection: Timestamp) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (endpoint, history) in names.histories() {
        for zombie in history.zombies().iter() {
            for name in zombie.names.iter().filter(|name| filters.pass(endpoint, name, zombie.address)) {
                let lookup = Lookup {
                    name: name.clone(),
                    lookup_time: zombie.alive_at,
                    expiration_time: next_collection,
                    ttl: 0,
                    addresses: vec![zombie.address],
                };
                entries.push(entry(endpoint, lookup, "connection"));
            }
        }
    }
    entries
}

/// Returns the filter of names; a pattern of stars stays as it is.
fn pattern(request: &Request) -> Option<Pattern> {
    request.query("matchpattern").filter(|text| !text.is_empty()).map(Pattern::parse)
}

fn entry(endpoint: u16, lookup: Lookup, source: &'static str) -> Entry {
    // Cilium's times have three digits at least.
    let time = |time: Timestamp| format!("{time:.3}");
    Entry {
        endpoint_id: endpoint,
        expiration_time: time(lookup.expiration_time),
        fqdn: canonical(&lookup.name),
        ips: lookup.addresses,
        lookup_time: time(lookup.lookup_time),
        source,
        ttl: lookup.ttl,
    }
}

/// Answers `DELETE /fqdn/cache`.
pub(crate) fn clear(book: &mut Book, request: &Request) -> Response {
    if let Some(refused) = api::refused_name_filters(request) {
        return refused;
    }
    book.clear(pattern(request).as_ref());
    Response::empty(200)
}

/// Answers `GET /fqdn/names`.
pub(crate) fn names(book: &Book) -> Response {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Selector {
        regex_string: String,
        selector_string: String,
    }
    #[derive(Serialize)]
    struct AllNames {
        #[serde(rename = "DNSPollNames")]
        polled: Option<()>,
        #[serde(rename = "FQDNPolicySelectors")]
        selectors: Vec<Selector>,
    }
    let selector = |selector: fqdn::Selector| Selector {
        regex_string: selector.compiled().map(|pattern| pattern.expression()).unwrap_or_default(),
        selector_string: selector.text(),
    };
    let selectors = book.names().selectors().into_iter().map(selector).collect();
    Response::json(200, &AllNames { polled: None, selectors })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::Operation;
    use fqdn::{Limits, Selector};
    use serde_json::{Value, json};

    use super::*;

    async fn body(response: Response) -> Value {
        assert_eq!(response.status().as_u16(), 200);
        serde_json::from_slice(&response.body().await).unwrap()
    }

    #[tokio::test]
    async fn entries_have_the_form_of_cilium_and_filters_select_them() {
        let mut book = Book::new(Limits::default());
        book.set_selectors(&BTreeSet::from([Selector::pattern("*.a.io")]));
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        for (endpoint, name, address) in [(7, "x.a.io", "192.0.2.1"), (8, "y.a.io", "192.0.2.2")] {
            book.learn(endpoint, Lookup::new(name, vec![address.parse().unwrap()], 60, now));
        }
        let all = Request::new(Operation::GetFqdnCache, &[]);
        let entries = body(cache(&book, &all, now)).await;
        let expected = json!({
            "endpoint-id": 7, "expiration-time": "2026-01-01T00:01:00.000Z", "fqdn": "x.a.io.", "ips": ["192.0.2.1"],
            "lookup-time": "2026-01-01T00:00:00.000Z", "source": "lookup", "ttl": 60,
        });
        assert_eq!((entries.as_array().unwrap().len(), &entries[0]), (2, &expected));
        let of_8 = Request::new(Operation::GetFqdnCacheID, &[("id", "8")]);
        assert_eq!(body(cache(&book, &of_8, now)).await[0]["fqdn"], "y.a.io.");
        let bad = Request::new(Operation::GetFqdnCacheID, &[("id", "x")]);
        assert_eq!(cache(&book, &bad, now).status().as_u16(), 404);
        let by = |key: &str, value: &str| {
            let mut request = Request::new(Operation::GetFqdnCache, &[]);
            request.query.push((key.to_owned(), value.to_owned()));
            request
        };
        for (key, value, count) in
            [("cidr", "192.0.2.2/32", 1), ("matchpattern", "*.a.io", 2), ("source", "global", 2)]
        {
            let entries = body(cache(&book, &by(key, value), now)).await;
            assert_eq!(entries.as_array().unwrap().len(), count, "{key}={value}");
        }
        assert_eq!(cache(&book, &by("source", "connection"), now).status().as_u16(), 404);
        assert_eq!(cache(&book, &by("matchpattern", "a b"), now).status().as_u16(), 400);
        let selectors = body(names(&book)).await;
        assert_eq!(
            selectors["FQDNPolicySelectors"][0]["selectorString"],
            "MatchName: , MatchPattern: *.a.io"
        );
        clear(&mut book, &by("matchpattern", "x.a.io"));
        assert_eq!(body(cache(&book, &all, now)).await.as_array().unwrap().len(), 1);
    }
}

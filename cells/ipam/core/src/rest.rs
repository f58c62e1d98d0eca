//! `POST /ipam`, `POST /ipam/{ip}` and `DELETE /ipam/{ip}`.

use std::net::IpAddr;

use api::{Request, Response};

use crate::error::Error;
use crate::handle::Ipam;
use crate::range::Family;

/// Allocates an address of each family, or of `?family=`; 502 if the range is full.
pub(crate) fn post_ipam(ipam: &Ipam, request: &Request) -> Response {
    let family = match request.query("family") {
        Some("ipv4") => Some(Family::V4),
        Some("ipv6") => Some(Family::V6),
        _ => None,
    };
    let owner = request.query("owner").unwrap_or_default();
    let expiration = request.header_bool("expiration").unwrap_or(false);
    match ipam.respond(request.query("pool").unwrap_or_default(), owner, family, expiration) {
        Ok(response) => Response::json(201, &response),
        Err(error) => Response::error(502, error.to_string()),
    }
}

/// Allocates a given address.
pub(crate) fn post_ipam_ip(ipam: &Ipam, request: &Request) -> Response {
    let (owner, pool) =
        (request.query("owner").unwrap_or_default(), request.query("pool").unwrap_or_default());
    let taken = address(request).and_then(|address| ipam.allocate_ip(address, owner, pool));
    match taken {
        Ok(()) => Response::empty(200),
        Err(error) => Response::error(500, error.to_string()),
    }
}

/// Releases an address.
pub(crate) fn delete_ipam_ip(ipam: &Ipam, request: &Request) -> Response {
    let released = match address(request) {
        Err(error) => return Response::error(400, error.to_string()),
        Ok(address) => ipam.release(address, request.query("pool").unwrap_or_default()),
    };
    match released {
        Ok(()) => Response::empty(200),
        Err(error) => Response::error(500, error.to_string()),
    }
}

fn address(request: &Request) -> Result<IpAddr, Error> {
    let text = request.param("ip");
    text.parse().map_err(|_| Error::NotAnAddress(text.to_owned()))
}

#[cfg(test)]
#[path = "rest_tests.rs"]
mod tests;

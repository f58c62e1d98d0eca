//! Acknowledgements: `NLMSG_ERROR` and `NLMSG_DONE`, with their explanations.

use std::io;

use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NLMSG_ERROR};

use crate::message::HEADER_LEN;
use crate::{Attributes, Error, Malformed, Message};

/// `NLMSGERR_ATTR_MSG` of `linux/netlink.h`.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// The lowest error code: those of the system end at `-MAX_ERRNO` (-4095, `linux/err.h`), subsystems such as ip_set have
/// their own below (`IPSET_ERR_PRIVATE` 4096, types of sets from 4352).
const MIN_CODE: i32 = -8191;

/// Bytes of an error code.
const CODE_LEN: usize = 4;

/// Returns the kernel's verdict on a request: an error for a code that is not 0.
pub(crate) fn verdict(message: &Message<'_>) -> Result<(), Error> {
    let code = match message.code() {
        // Before Linux 4.13, which added errors to it, the end of a dump had no code.
        Err(_) if message.header.message_type != NLMSG_ERROR && message.body.is_empty() => 0,
        code => code?,
    };
    match code {
        0 => Ok(()),
        MIN_CODE..0 => Err(Error::Refused {
            source: io::Error::from_raw_os_error(-code),
            explanation: explanation(message),
        }),
        code => Err(Malformed::ErrorCode { code }.into()),
    }
}

/// Returns the text of an extended acknowledgement; `None` if it cannot be parsed, so that the error code is kept.
fn explanation(message: &Message<'_>) -> Option<Box<str>> {
    if message.header.flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let mut start = CODE_LEN;
    if message.header.message_type == NLMSG_ERROR {
        // struct nlmsgerr: the code, then the request's header; its body, too, unless that was cut off.
        let request = message.body.get(CODE_LEN..)?;
        start += if message.header.flags & NLM_F_CAPPED != 0 {
            HEADER_LEN
        } else {
            (u32::from_ne_bytes(*request.first_chunk()?) as usize).checked_next_multiple_of(4)?
        };
    }
    let text = Attributes::new(message.body.get(start..)?).first(NLMSGERR_ATTR_MSG).ok()??.text();
    (!text.is_empty()).then(|| String::from_utf8_lossy(text).into())
}

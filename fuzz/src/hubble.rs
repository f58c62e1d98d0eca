//! Requests of Hubble's clients: filters and field masks, from gRPC and from JSON; the lines of flows that pods have filled.

use hubble_api::flow::flow_filter::Experimental;
use hubble_api::flow::layer4::Protocol;
use hubble_api::flow::layer7::Record;
use hubble_api::flow::{
    CiliumEventType, Endpoint, Flow, FlowFilter, Http, Ip, Layer4, Layer7, Tcp, TcpFlags, Verdict, Workload,
};
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::{GetAgentEventsRequest, GetFlowsRequest, GetFlowsResponse};
use hubble_api::peer::NotifyRequest;
use prost::Message;

/// Flows with a value in each field that filters know, of which one has texts of the input.
fn flows(text: &str) -> Vec<Flow> {
    let endpoint = |pod: &str| {
        Some(Endpoint {
            namespace: "shop".to_owned(),
            pod_name: pod.to_owned(),
            labels: vec![format!("k8s:app={pod}")],
            workloads: vec![Workload { name: pod.to_owned(), kind: "Job".to_owned() }],
            ..Endpoint::default()
        })
    };
    let tcp = Tcp { source_port: 40_000, destination_port: 80, flags: Some(TcpFlags::default()) };
    let flow = |pod: &str, url: &str| Flow {
        verdict: Verdict::Dropped.into(),
        ip: Some(Ip { source: "10.0.0.1".into(), destination: "fd00::1".into(), ..Ip::default() }),
        l4: Some(Layer4 { protocol: Some(Protocol::Tcp(tcp)) }),
        l7: Some(Layer7 {
            record: Some(Record::Http(Http { code: 200, url: url.to_owned(), ..Http::default() })),
            ..Layer7::default()
        }),
        source: endpoint(pod),
        destination: endpoint("web"),
        destination_names: vec![url.to_owned()],
        event_type: Some(CiliumEventType { r#type: 129, sub_type: 0 }),
        summary: url.to_owned(),
        ..Flow::default()
    };
    vec![flow("web", "http://a/b?c"), flow(text, text), Flow::default()]
}

/// Messages are the same after encoding.
fn message<M: Message + Default + PartialEq>(data: &[u8]) -> Option<M> {
    let message = M::decode(data).ok()?;
    assert!(M::decode(&*message.encode_to_vec()).is_ok_and(|again| again == message));
    Some(message)
}

/// An expression of CEL is refused, or its evaluation ends; a condition that is always true decides in spite of it.
fn expression(text: &str) {
    let filter = |text: String| FlowFilter {
        experimental: Some(Experimental { cel_expression: vec![text] }),
        ..FlowFilter::default()
    };
    let Ok(filters) = hubble::Filters::new(&[filter(text.to_owned())], &[]) else { return };
    let Ok(all) = hubble::Filters::new(&[filter(format!("({text}\n) || true"))], &[]) else {
        // The limits of depth and length.
        return;
    };
    for flow in flows(text) {
        assert!(all.select(&flow), "{text}");
        let _ = filters.select(&flow);
    }
}

/// The first byte selects the kind of message: a filter in JSON, an expression, or a request.
pub(crate) fn run(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(data);
    let request = match first % 4 {
        0 => message::<GetFlowsRequest>(data),
        1 => {
            message::<GetAgentEventsRequest>(data);
            message::<NotifyRequest>(data);
            return expression(&text);
        }
        kind => {
            let value = serde_json::from_str(&text).ok();
            let filter = value.and_then(|value| hubble_api::filter_from_json(&value).ok());
            let list = filter.into_iter().collect();
            Some(match kind {
                2 => GetFlowsRequest { whitelist: list, ..GetFlowsRequest::default() },
                _ => GetFlowsRequest { blacklist: list, ..GetFlowsRequest::default() },
            })
        }
    };
    let Some(request) = request else { return };
    let flows = flows(&text);
    let filters = hubble::Filters::new(&request.whitelist, &request.blacklist);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let Ok(runtime) = runtime else { return };
    let Ok(responses) = runtime.block_on(hubble::testing::get_flows(&request, flows.clone())) else { return };
    // A request with invalid filters is refused.
    let filters = filters.unwrap_or_else(|error| panic!("{error}"));
    let selected = flows.iter().filter(|flow| filters.select(flow)).count();
    assert!(responses.len() <= selected, "{request:?}: {responses:?}");
    responses.iter().for_each(printed);
}

/// Neither form of a flow controls a terminal.
fn printed(response: &GetFlowsResponse) {
    assert!(matches!(response.response_types, Some(ResponseTypes::Flow(_))), "{response:?}");
    for line in
        [hubble_api::to_compact(response, &hubble_api::LineOptions::default()), hubble_api::to_json(response)]
    {
        assert!(!line.trim_end_matches('\n').contains(char::is_control), "{line:?}");
    }
}

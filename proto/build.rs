//! Compiles the service definitions without `protoc`: protox parses them, tonic-prost-build generates the code.

/// Messages that commands print as JSON.
const PRINTED: &[&str] = &[
    "DropCount",
    "EndpointCounters",
    "EndpointStatus",
    "FdbEntry",
    "Forwarder",
    "ForwardingEndpoint",
    "FrameTrace",
    "Host",
    "MiscutPacket",
    "MulticastState",
    "PathCounters",
    "PathStatus",
    "PfcClass",
    "Port",
    "PortCounters",
    "RingStatus",
    "RouteHop",
    "SwitchState",
    "Tenant",
    "TraceOutput",
    "TraceStep",
    "TranslatedState",
];

/// Fields with another name or form in JSON. A skipped field is printed beside the message in another form.
const FIELDS: &[(&str, &str)] = &[
    ("EndpointStatus.counters", "flatten"),
    ("FrameTrace.outputs", "skip"),
    ("Host.switch_name", "rename = \"switch\""),
    ("MulticastState.counters", "skip"),
    ("MulticastState.paths", "skip"),
    ("PathStatus.source", "skip"),
    ("PathStatus.counters", "flatten"),
    ("Port.counters", "flatten"),
    ("PortCounters.drops", "skip"),
    ("SwitchState.boot_id", "skip"),
    ("TranslatedState.endpoints", "skip"),
    ("TranslatedState.conflict", "skip"),
    ("TranslatedState.counters", "skip"),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["types", "agent", "controller", "process"].map(|name| format!("castnet/v1/{name}.proto"));
    for file in &files {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(&files, ["."])?;
    let mut builder = tonic_prost_build::configure();
    for message in PRINTED {
        builder = builder.type_attribute(format!(".castnet.v1.{message}"), "#[derive(serde::Serialize)]");
    }
    for (field, how) in FIELDS {
        builder = builder.field_attribute(format!(".castnet.v1.{field}"), format!("#[serde({how})]"));
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}

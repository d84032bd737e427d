//! Compiles the service definitions without `protoc`: protox parses them, tonic-prost-build generates the code.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["types", "agent", "controller"].map(|name| format!("castnet/v1/{name}.proto"));
    for file in &files {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(&files, ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}

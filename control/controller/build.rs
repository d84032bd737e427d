//! Compiles the part of etcd's API that the store uses, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "proto/etcd.proto";
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["."])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(descriptors)?;
    Ok(())
}

//! Compiles the part of etcd's API that the store uses, without `protoc`.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "proto/etcd.proto";
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["."])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(descriptors.clone())?;
    // With servers, for the model of etcd in the tests.
    let folder = PathBuf::from(std::env::var("OUT_DIR")?).join("model");
    std::fs::create_dir_all(&folder)?;
    tonic_prost_build::configure()
        .out_dir(folder)
        .compile_fds(descriptors)?;
    Ok(())
}

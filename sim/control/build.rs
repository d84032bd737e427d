//! Compiles the part of etcd's API that the controller uses, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (file, folder) = ("proto/etcd.proto", "../../control/controller");
    println!("cargo::rerun-if-changed={folder}/{file}");
    tonic_prost_build::configure().compile_fds(protox::compile([file], [folder])?)?;
    Ok(())
}

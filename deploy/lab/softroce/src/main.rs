//! `softroce`: a lab of SoftRoCE machines for a person at a terminal.
fn main() {
    let say = |text: &str| eprintln!("{text}");
    match std::env::args().nth(1).as_deref() {
        Some("install") => castnet_softroce::install(&say).unwrap(),
        Some("image") => println!("{:?}", castnet_softroce::image(None, false, &say).unwrap()),
        Some(n) => {
            let config = castnet_softroce::LabConfig { hosts: n.parse().unwrap(), bridge: true, ..Default::default() };
            let lab = castnet_softroce::Lab::start_with(&config, &say).map_err(|e| println!("{e}")).unwrap();
            println!("{:?}", lab.boot_time());
        }
        None => {}
    }
}

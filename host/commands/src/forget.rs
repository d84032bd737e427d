use castnet_console::api;
use castnet_console::connect::{self, CONTROLLER, Tls};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output};
use castnet_proto::transport::Controllers;
use clap::Args;
use serde::Serialize;
use tonic::Code;

#[derive(Debug, Args)]
pub(crate) struct ForgetCommand {
    /// Name of the host
    #[arg(value_name = "HOST")]
    name: String,
    /// Address of the controller; of several, all with commas between them
    #[arg(long, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    controller: Controllers,
    #[command(flatten)]
    tls: Tls,
}

#[derive(Debug, Serialize)]
struct Forgotten {
    host: String,
}

impl ForgetCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let security = self.tls.security()?;
        let mut controller = connect::controller(&self.controller, &security).await?;
        let host = self.name;
        let request = api::ForgetHostRequest { name: host.clone() };
        controller.forget_host(request).await.map_err(|status| {
            let code = status.code();
            let failure = Failure::from(status);
            match code {
                Code::NotFound => failure.next("castnet topology shows the hosts"),
                Code::FailedPrecondition => {
                    failure.next("castnet group destroy GROUP, or a member that leaves, frees a host")
                }
                _ => failure,
            }
        })?;
        let sentence = format!("host {host} is forgotten; it is known again when it joins");
        output.show(&Done {
            facts: Forgotten { host },
            sentence,
        })
    }
}

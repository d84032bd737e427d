-- ACK storm: the source's port sends the one data frame that opens 128 PSNs, then the receivers acknowledge them, over and over.
-- pktgen -l 0-8 -n 4 -a SRC -a RX1 -a RX2 -- -P -m "[1:2].0,[3:4].1,[5:6].2" -s 0:ack-tx.pcap -s 1:ack-rx1.pcap -s 2:ack-rx2.pcap -f ack.lua
package.path = package.path .. ";?.lua;test/?.lua;app/?.lua;"
require "Pktgen"

local source, receivers = "0", "1,2"
local rates = { 1, 5, 10, 25, 50, 100 } -- per cent of the link
local seconds = 10

pktgen.screen("off")
pktgen.set(source, "count", 1)
pktgen.set(receivers, "count", 0)
pktgen.start(source)
pktgen.delay(500)
for _, rate in ipairs(rates) do
    pktgen.clr()
    pktgen.set(receivers, "rate", rate)
    pktgen.start(receivers)
    pktgen.delay(seconds * 1000)
    pktgen.stop(receivers)
    pktgen.delay(1000)
    local stats = pktgen.portStats("all", "port")
    print(string.format("rate %3d %%  ACKs %d and %d, to the source %d", rate,
        stats[1]["opackets"], stats[2]["opackets"], stats[0]["ipackets"]))
end
pktgen.screen("on")

-- Multicast data: one port sends the packet file that pktgen was started with, at several rates, and the receivers' ports are read.
-- pktgen -l 0-8 -n 4 -a SRC -a RX1 -a RX2 -- -P -m "[1:2].0,[3:4].1,[5:6].2" -s 0:multicast-1024.pcap -f multicast.lua
package.path = package.path .. ";?.lua;test/?.lua;app/?.lua;"
require "Pktgen"

local source, receivers = "0", { 1, 2 }
local rates = { 1, 5, 10, 25, 50, 100 } -- per cent of the link
local seconds = 10

pktgen.screen("off")
pktgen.set(source, "count", 0) -- the file over and over
for _, rate in ipairs(rates) do
    pktgen.clr()
    pktgen.set(source, "rate", rate)
    pktgen.delay(500)
    pktgen.start(source)
    pktgen.delay(seconds * 1000)
    pktgen.stop(source)
    pktgen.delay(1000)
    local stats = pktgen.portStats("all", "port")
    local sent = stats[tonumber(source)]["opackets"]
    local line = string.format("rate %3d %%  sent %12d", rate, sent)
    for _, port in ipairs(receivers) do
        local got = stats[port]["ipackets"]
        line = line .. string.format("  port %d got %12d (%.4f %%)", port, got, sent > 0 and 100 * got / sent or 0)
    end
    print(line)
end
pktgen.screen("on")

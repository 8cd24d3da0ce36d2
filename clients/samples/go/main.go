// A record processor in Go: appends each record to DIRECTORY/SHARD.jsonl.
//
//	go build -o consumer . && executableName = ./consumer DIRECTORY
package main

import (
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"time"
)

type message struct {
	Action  string   `json:"action"`
	ShardID string   `json:"shardId"`
	Records []record `json:"records"`
	Error   string   `json:"error"` // null leaves it empty
}

type record struct {
	Data              []byte `json:"data"` // base64 on the wire
	PartitionKey      string `json:"partitionKey"`
	SequenceNumber    string `json:"sequenceNumber"` // 56 digits: no number of Go holds it
	SubSequenceNumber int64  `json:"subSequenceNumber"`
}

// The daemon reads our stdout, so nothing but messages may go there; log writes to stderr.
// The decoder takes lines of any length; a batch has up to 14 MB.
var in, out = json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)

// receive ends the process where the daemon has gone.
func receive() (told message) {
	if err := in.Decode(&told); err != nil {
		os.Exit(0)
	}
	return
}

func send(value map[string]any) {
	must(out.Encode(value))
}

// must ends the process without the status: nothing is skipped, another child gets the records again.
func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// checkpoint says that everything delivered so far is done. The answer is always the next line.
func checkpoint() {
	for pause := 200 * time.Millisecond; ; pause *= 2 {
		send(map[string]any{"action": "checkpoint", "sequenceNumber": nil, "subSequenceNumber": nil})
		answer := receive()
		if answer.Error == "" {
			return
		}
		log.Print("checkpoint: ", answer.Error)
		// Another attempt may succeed: DynamoDB throttled the write or did not answer. Otherwise it is given up:
		// records are repeated, none is lost. ShutdownException: another worker has the shard, leaseLost follows.
		passing := answer.Error == "ThrottlingException" || answer.Error == "KinesisClientLibDependencyException"
		if !passing || pause > 4*time.Second {
			return
		}
		time.Sleep(pause)
	}
}

func process(file *os.File, records []record) {
	lines := json.NewEncoder(file)
	for _, each := range records {
		must(lines.Encode(map[string]any{"sequenceNumber": each.SequenceNumber, "text": string(each.Data),
			"subSequenceNumber": each.SubSequenceNumber, "partitionKey": each.PartitionKey}))
	}
	must(file.Sync()) // what is checkpointed must be safe
}

func main() {
	var file *os.File
	for {
		told := receive()
		switch told.Action {
		case "initialize":
			must(os.MkdirAll(os.Args[1], 0o755))
			name := filepath.Join(os.Args[1], told.ShardID+".jsonl")
			opened, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			must(err)
			file = opened
		case "processRecords":
			process(file, told.Records)
			checkpoint()
		case "shutdownRequested", "shardEnded": // the last chance; at the end of a shard it is a must
			checkpoint()
		case "leaseLost": // another worker has the shard: no checkpoint is possible any more
		}
		send(map[string]any{"action": "status", "responseFor": told.Action})
	}
}

{{- define "thermocline.agent" -}}
image: {{ include "thermocline.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - agent
  - --job-rules=/run/thermocline-pods/rules.toml
  - --set=trace.machine=$(NODE_NAME)
  # Its connections are those of the container `network`.
  - --set=agent.network=/run/thermocline-network/socket
  {{- if not .Values.offloading.enabled }}
  - --dry-run
  {{- end }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  - name: THERMOCLINE_LOG
    value: {{ .Values.logLevel }}
securityContext:
  runAsUser: 0
  {{- if .Values.agent.privileged }}
  privileged: true
  {{- else }}
  privileged: false
  allowPrivilegeEscalation: false
  capabilities:
    drop: ["ALL"]
    # As the systemd unit: DAMON, MGLRU and cgroups; page maps; advice on memory; cgroups of other users.
    add: ["SYS_ADMIN", "SYS_PTRACE", "SYS_NICE", "DAC_OVERRIDE"]
  seccompProfile:
    type: {{ .Values.agent.seccompProfile }}
  appArmorProfile:
    type: {{ .Values.agent.appArmorProfile }}
  {{- end }}
  readOnlyRootFilesystem: true
  {{- with .Values.agent.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
  {{- end }}
# Answers from the state that the loop published last: fails if the process hangs or does not start.
livenessProbe:
  exec:
    command: ["/usr/bin/thermocline", "status"]
  initialDelaySeconds: 60
  periodSeconds: 60
  timeoutSeconds: 10
  failureThreshold: 5
resources:
  {{- toYaml .Values.agent.resources | nindent 2 }}
volumeMounts:
  - name: sys
    mountPath: /sys
  - name: runtime
    mountPath: {{ .Values.runtimeDir }}
  - name: state
    mountPath: {{ .Values.stateDir }}
  - name: config
    mountPath: /etc/thermocline
    readOnly: true
  - name: pod-rules
    mountPath: /run/thermocline-pods
    readOnly: true
  - name: network-socket
    mountPath: /run/thermocline-network
    readOnly: true
{{- end -}}

{{- define "thermocline.network" -}}
image: {{ include "thermocline.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - network
  - --listen=/run/thermocline-network/socket
env:
  - name: THERMOCLINE_LOG
    value: {{ .Values.logLevel }}
{{- with .Values.network.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  # A number that no other program is likely to use, because processes of the node are visible.
  runAsNonRoot: true
  runAsUser: 64918
  runAsGroup: 64918
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
  seccompProfile:
    type: RuntimeDefault
  {{- with .Values.network.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
  {{- end }}
resources:
  {{- toYaml .Values.network.resources | nindent 2 }}
volumeMounts:
  - name: network-socket
    mountPath: /run/thermocline-network
  # A file of a trace, while it is sent.
  - name: network-files
    mountPath: /tmp
{{- end -}}

{{- define "thermocline.podWatcher" -}}
image: {{ include "thermocline.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - kubernetes
  - --node=$(NODE_NAME)
  - --rules=/run/thermocline-pods/rules.toml
  - --default-class={{ .Values.pods.defaultClass }}
  {{- if .Values.pods.staticPods }}
  - --static-pods
  {{- end }}
  {{- with .Values.pods.cgroupRoot }}
  - --cgroup-root={{ . }}
  {{- end }}
  {{- if .Values.promisedMemory.enabled }}
  - --promise={{ .Values.promisedMemory.period }}
  - --risk={{ .Values.promisedMemory.risk }}
  {{- end }}
  {{- if .Values.metrics.enabled }}
  - --metrics-listen=[::]:{{ .Values.metrics.port }}
  {{- end }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  - name: THERMOCLINE_LOG
    value: {{ .Values.logLevel }}
securityContext:
  {{- if .Values.promisedMemory.enabled }}
  # Only root may read the journal. It has no capability.
  runAsUser: 0
  {{- else }}
  # A number that no other program is likely to use, because processes of the node are visible.
  runAsNonRoot: true
  runAsUser: 64917
  runAsGroup: 64917
  {{- end }}
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
  seccompProfile:
    type: RuntimeDefault
  {{- with .Values.podWatcher.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if .Values.metrics.enabled }}
ports:
  - name: metrics
    containerPort: {{ .Values.metrics.port }}
{{- end }}
resources:
  {{- toYaml .Values.podWatcher.resources | nindent 2 }}
volumeMounts:
  - name: pod-rules
    mountPath: /run/thermocline-pods
  - name: api-access
    mountPath: /var/run/secrets/kubernetes.io/serviceaccount
    readOnly: true
  - name: config
    mountPath: /etc/thermocline
    readOnly: true
  {{- if .Values.promisedMemory.enabled }}
  - name: state
    mountPath: {{ .Values.stateDir }}
    readOnly: true
  {{- end }}
{{- end -}}
